"""From tapes at a few points to sizes at all points, exactly; and saying so where that is not possible."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.forecast.recordings import LANGUAGE, VISION, B, L, R, S, Size, language_recording, recorded, tape_with
from vramcast.errors import InvalidInput
from vramcast.forecast.peaks import peaks
from vramcast.forecast.recording import Span
from vramcast.forecast.sizes import Point
from vramcast.profile.solving import points_for, solve

coefficients = st.integers(1, 1 << 20)


def sizes_at(found: Point, sizes: list[Size]) -> list[int]:
    return tape_with(size(found) for size in sizes).sizes.tolist()  # type: ignore[no-any-return]


@settings(deadline=None, max_examples=25)
@given(st.lists(coefficients, min_size=6, max_size=6), st.integers(1, 64), st.integers(128, 4096), st.integers(1, 256))
def test_a_language_models_sizes_are_exact_everywhere(c: list[int], batch: int, length: int, rank: int) -> None:
    sizes: list[Size] = [
        lambda at: c[0] + c[1] * at[R],
        lambda at: c[2] * at[B] * at[L],
        lambda at: c[3] * at[B] * at[L] ** 2 + c[4] * at[B],
        lambda at: c[5] * at[B] * at[L] * at[R],
        lambda at: 8 * at[B] * -(-at[L] // 32),
        lambda at: at[B] * at[L] * -(-at[L] // 8),
    ]
    recording = solve(recorded(sizes, LANGUAGE))
    (piece,) = recording.pieces
    assert piece.error == 0
    point = {B: batch, L: length, R: rank}
    assert piece.tape(point).sizes.tolist() == sizes_at(point, sizes)


@settings(deadline=None, max_examples=25)
@given(st.lists(coefficients, min_size=4, max_size=4), st.integers(1, 64), st.integers(128, 384))
def test_image_sides_that_strides_do_not_divide_are_exact_too(c: list[int], batch: int, side: int) -> None:
    sizes: list[Size] = [
        lambda at: c[0] * at[B] * (-(-at[S] // 4)) ** 2,
        lambda at: c[1] * at[B] * (at[S] // 16) ** 2 + c[1] * at[B],
        lambda at: c[2] * at[B] * ((at[S] // 16) ** 2 + 1) ** 2,
        lambda at: c[3],
    ]
    recording = solve(recorded(sizes, VISION))
    (piece,) = recording.pieces
    point = {B: batch, S: side}
    assert piece.tape(point).sizes.tolist() == sizes_at(point, sizes)


@pytest.mark.parametrize("stem", [2, 4, 8])
@given(st.integers(1, 64), st.integers(128, 384))
@settings(deadline=None, max_examples=25)
def test_sides_that_are_rounded_up_and_then_down_are_exact(stem: int, batch: int, side: int) -> None:
    """DenseNet: two strides of two that pad, then poolings that drop the rest."""
    sizes: list[Size] = [
        lambda at: 64 * at[B] * (-(-at[S] // stem)) ** 2,
        lambda at: 64 * at[B] * (-(-at[S] // stem) // 2) ** 2,
        lambda at: 96 * at[B] * (-(-at[S] // stem) // 4) ** 2 + 4 * at[B],
    ]
    point = {B: batch, S: side}
    assert solve(recorded(sizes, VISION)).pieces[0].tape(point).sizes.tolist() == sizes_at(point, sizes)


def test_sides_smaller_than_every_stride_are_exact() -> None:
    """Latents of diffusion models have sides of 16 to 64."""
    sizes: list[Size] = [lambda at: 8 * at[B] * at[S] ** 2, lambda at: 3 * at[B] * at[S] ** 2 * (at[S] // 8) + at[B]]
    recording = solve(recorded(sizes, {B: Span(2, 8), S: Span(16, 32, 16)}))
    point = {B: 9, S: 24}
    assert recording.pieces[0].tape(point).sizes[0] == sizes[0](point)


def test_even_image_sides_are_exact_where_odd_ones_have_no_simple_quotient() -> None:
    """A stride that drops the rest, and then a pooling that pads."""
    sizes: list[Size] = [lambda at: 64 * at[B] * (-(-(at[S] // 2) // 2)) ** 2, lambda at: 4 * at[B]]
    recording = solve(recorded(sizes, VISION))
    even, odd = {B: 7, S: 288}, {B: 7, S: 287}
    assert recording.at(even).tape.sizes.tolist() == sizes_at(even, sizes)
    assert recording.at(even).notes == ()
    assert "within" in recording.at(odd).notes[0]


def test_there_are_enough_points_and_they_differ() -> None:
    assert [point[L] for point in points_for({B: Span(2, 8), L: Span(512, 512)})] == [512] * 7
    assert [point[L] for point in points_for({B: Span(2, 8), L: Span(16, 77)})] == [16, 24, 32, 48, 72, 33, 47]
    lengths = [point[L] for point in points_for(LANGUAGE)]
    assert lengths == [128, 256, 768, 1664, 4096, 769, 1663]
    assert [point[S] for point in points_for(VISION)] == [128, 160, 224, 288, 384, 237, 287, 346, 244]


def test_a_size_that_is_no_polynomial_is_approximated_and_its_error_told() -> None:
    sizes: list[Size] = [lambda at: 1 << 20, lambda at: at[B] * int(at[L] ** 1.5) * 4096]
    recording = solve(recorded(sizes, LANGUAGE))
    (piece,) = recording.pieces
    assert 0.005 < piece.error < 0.5
    reading = recording.at({B: 3, L: 1031, R: 8})
    assert reading.notes == (f"sizes at batch 3, length 1031, rank 8 are within {piece.error:.1%}",)


def test_another_order_of_events_is_another_piece() -> None:
    windows = [{B: b, L: n} for b, n in ((2, 131), (3, 251), (5, 509), (7, 601), (2, 1021), (3, 1511), (5, 2039))]
    tapes = [(at, tape_with([512, at[B] * at[L] * 64], steps=2 if at[L] < 1000 else 3)) for at in windows]
    recording = solve(tapes)
    assert [str(piece.spans[L]) for piece in recording.pieces] == ["131 to 601", "1021 to 2039"]
    assert not recording.at({B: 4, L: 1024}).notes
    between = recording.at({B: 4, L: 900})
    assert between.notes == (
        "batch 4, length 900 was not recorded; answered by the steps of batch 2 and up, length 1021 to 2039",
    )
    assert len(between.tape.events) == 7


def test_a_piece_of_one_point_answers_only_that() -> None:
    tapes = recorded([lambda at: 512, lambda at: at[B] * at[L]], LANGUAGE)
    alone = {B: 1, L: 1024, R: 8}
    recording = solve([*tapes, (alone, tape_with([512, 77], steps=3))])
    assert recording.at(alone).tape.sizes.tolist() == [512, 77, 77, 77]
    assert recording.at({**alone, B: 2}).tape.sizes.tolist() == [512, 2048, 2048]
    near = recording.at({**alone, L: 1040})
    assert near.tape.sizes.tolist() == [512, 1040, 1040]
    assert "was not recorded" in near.notes[0]


def test_one_sample_is_answered_by_larger_batches_with_a_note() -> None:
    reading = language_recording().at({B: 1, L: 1024, R: 8})
    assert reading.tape.sizes.tolist()[1] == 4096 * 1024
    assert "was not recorded" in reading.notes[0]


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({B: 2, L: 8192, R: 8}, "length 8192 is outside of what was recorded, 128 to 4096"),
        ({B: 0, L: 1024, R: 8}, "batch 0 is outside of what was recorded, 1 to 2147483648"),
        ({B: 2, L: 1024}, "depends on batch, length, rank, not on batch, length"),
        ({B: 1 << 31, L: 4093, R: 1 << 31}, "a tensor would take more than any GPU has"),
    ],
)
def test_outside_it_says_so(point: Point, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        language_recording().at(point)


def test_limits_can_be_widened_by_whoever_knows() -> None:
    recording = solve(recorded([lambda at: at[L] * at[B]], LANGUAGE), limits={L: Span(1, 1 << 17)})
    assert recording.at({B: 2, L: 100_000, R: 8}).tape.sizes.tolist() == [200_000]


def test_nothing_recorded_or_mixed_variables_are_refused() -> None:
    with pytest.raises(InvalidInput, match="nothing was recorded"):
        solve([])
    with pytest.raises(InvalidInput, match="different variables"):
        solve([({B: 1}, tape_with([1])), ({L: 1}, tape_with([1]))])


def test_a_tape_from_a_recording_replays() -> None:
    found = peaks(language_recording().at({B: 4, L: 1024, R: 16}).tape)
    assert found.active_bytes == (4 << 20) + 4096 * 4096 + 2 * 4096 * 16 + 512 * 16 + 4 * 1024**2
