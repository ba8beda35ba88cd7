"""Replaying a tape: PyTorch's rules, and that the compiled loop and the Python one agree."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.forecast.reference_allocator import CachingAllocator
from tests.forecast.tapes import KIB, MIB, random_tapes, tape_of
from vramcast.errors import InvalidInput
from vramcast.forecast.compiled import compiled_loops
from vramcast.forecast.peaks import MOST_BYTES, AllocatorSettings, memory_curve, peaks
from vramcast.forecast.tape import Mark, Moment, Role, Tape

EXPANDABLE = AllocatorSettings(expandable_segments=True)
all_settings = st.builds(AllocatorSettings, st.none() | st.integers(0, 120 * MIB), st.booleans())


def test_the_loop_is_compiled_where_there_is_a_compiler() -> None:
    assert shutil.which("cc") is None or compiled_loops() is not None


@given(random_tapes(streams=3), all_settings)
def test_the_compiled_loop_and_the_python_one_agree(tape: Tape, settings: AllocatorSettings) -> None:
    assert peaks(tape, settings) == peaks(tape, settings, compiled=False)


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_loops_agree_on_long_tapes_of_few_sizes(seed: int, expandable: bool) -> None:
    """Blocks are split, joined and taken again thousands of times, so that any of them was many things before."""
    random = np.random.default_rng(seed)
    sizes, events, live = random.integers(1, 3 * MIB, 12)[random.integers(0, 12, 3_000)], [], []
    for storage in range(len(sizes)):
        events.append(storage)
        live.append(storage)
        while live and random.random() < 0.45:
            events.append(~live.pop(-1 if random.random() < 0.5 else int(random.integers(len(live)))))
    tape = tape_of(sizes.tolist(), events)
    for capacity in (None, int(0.97 * peaks(tape).reserved_bytes), int(1.02 * peaks(tape).active_bytes)):
        settings = AllocatorSettings(capacity, expandable)
        assert peaks(tape, settings) == peaks(tape, settings, compiled=False)


@given(random_tapes())
def test_a_plain_device_agrees_with_the_reference(tape: Tape) -> None:
    reference, address = CachingAllocator(), {}
    for event in tape.events.tolist():
        if event >= 0:
            address[event] = reference.malloc(int(tape.sizes[event]))
        else:
            reference.free(address[~event])
    found = peaks(tape)
    assert (found.active_bytes, found.reserved_bytes) == (reference.peak_active_bytes, reference.reserved_bytes)


@given(random_tapes(streams=2), all_settings)
def test_what_is_active_is_reserved_and_what_is_reserved_fits(tape: Tape, settings: AllocatorSettings) -> None:
    curve = memory_curve(tape, settings)
    assert (curve.by_role_bytes.sum(axis=1) <= curve.active_bytes).all()
    assert (curve.active_bytes <= curve.reserved_bytes).all()
    if settings.capacity_bytes is not None:
        assert curve.reserved_bytes.max(initial=0) <= max(512, settings.capacity_bytes)


@given(random_tapes(streams=2), all_settings)
def test_peaks_are_the_maxima_of_the_curve(tape: Tape, settings: AllocatorSettings) -> None:
    found, curve = peaks(tape, settings), memory_curve(tape, settings)
    assert found.active_bytes == curve.active_bytes.max(initial=0)
    assert found.reserved_bytes == curve.reserved_bytes.max(initial=0)
    if found.active_bytes:
        assert sum(found.by_role.values()) == curve.by_role_bytes[found.moment.event].sum()


def test_a_full_device_gives_cached_segments_back_and_tries_again() -> None:
    tape = tape_of([30 * MIB, 30 * MIB, 40 * MIB], [0, 1, ~0, ~1, 2])
    assert peaks(tape).reserved_bytes == 100 * MIB
    found = peaks(tape, AllocatorSettings(70 * MIB))
    assert (found.reserved_bytes, found.retries, found.out_of_memory) == (60 * MIB, 1, None)


def test_a_segment_with_a_used_block_is_not_given_back() -> None:
    # 5 MiB come from a segment of 20 MiB, so 15 free ones stay reserved.
    tape = tape_of([5 * MIB, 5 * MIB, 41 * MIB], [0, 1, ~0, 2], marks=(Mark(0, Moment.STEP), Mark(3, Moment.BACKWARD)))
    assert peaks(tape, AllocatorSettings(62 * MIB)).out_of_memory is None
    failed = peaks(tape, AllocatorSettings(60 * MIB)).out_of_memory
    assert failed is not None
    assert str(failed) == "the backward pass of step 1"


def test_each_stream_has_its_own_pools() -> None:
    events = [0, ~0, 1]
    assert peaks(tape_of([30 * MIB, 30 * MIB], events)).reserved_bytes == 30 * MIB
    assert peaks(tape_of([30 * MIB, 30 * MIB], events, streams=[0, 1])).reserved_bytes == 60 * MIB


def test_an_expandable_segment_grows_by_what_is_missing() -> None:
    tape = tape_of([30 * MIB, 70 * MIB], [0, ~0, 1])
    assert peaks(tape).reserved_bytes == 100 * MIB  # two segments
    assert peaks(tape, EXPANDABLE).reserved_bytes == 80 * MIB  # pages of 20 MiB


def test_an_expandable_segment_takes_the_end_last() -> None:
    # The free 20 MiB at the end fit best, but they could grow: the hole of 40 is taken.
    tape = tape_of([40 * MIB, 20 * MIB, 20 * MIB, 15 * MIB, 50 * MIB], [0, 1, 2, ~0, ~2, 3, 4])
    assert peaks(tape, EXPANDABLE).reserved_bytes == (40 + 20 + 60) * MIB


def test_expandable_pages_without_a_used_byte_go_back() -> None:
    tape = tape_of([60 * MIB, 10 * MIB, 70 * MIB], [0, 1, ~0, 2])
    assert peaks(tape, EXPANDABLE).reserved_bytes == (80 + 60) * MIB
    found = peaks(tape, AllocatorSettings(100 * MIB, expandable_segments=True))
    assert (found.reserved_bytes, found.retries, found.out_of_memory) == (80 * MIB, 1, None)


def test_the_peak_is_told_by_step_phase_and_role() -> None:
    marks = (Mark(1, Moment.STEP), Mark(1, Moment.FORWARD), Mark(2, Moment.BACKWARD), Mark(5, Moment.END))
    roles = (Role.WEIGHT, Role.SAVED, Role.GRADIENT)
    tape = tape_of([4 * KIB, 2 * KIB, 3 * KIB], [0, 1, 2, ~1, ~2], marks, roles)
    found = peaks(tape)
    assert str(found.moment) == "the backward pass of step 1"
    assert found.by_role == {Role.WEIGHT: 4 * KIB, Role.GRADIENT: 3 * KIB, Role.SAVED: 2 * KIB}
    assert str(peaks(tape_of([512], [0])).moment) == "loading the model"


def test_an_absurd_total_is_refused() -> None:
    with pytest.raises(InvalidInput, match="256 TiB"):
        peaks(tape_of([MOST_BYTES, MOST_BYTES], [0, 1]))


def test_frees_in_no_order_are_replayed_until_they_are_more_than_any_steps_have() -> None:
    def scattered(blocks: int) -> Tape:
        frees = np.random.default_rng(1).permutation(np.arange(0, blocks, 2))
        return tape_of([KIB] * blocks, [*range(blocks), *(~frees).tolist()])

    assert peaks(scattered(2_000)) == peaks(scattered(2_000), compiled=False)
    if compiled_loops() is not None:
        with pytest.raises(InvalidInput, match="disorder"):
            peaks(scattered(100_000))


def test_arrays_of_other_types_are_converted() -> None:
    tape = tape_of([MIB, 3 * MIB], [0, 1, ~0])
    odd = Tape(tape.sizes.astype(np.int32), tape.roles, tape.units, tape.events.astype(np.int64), ())  # type: ignore[arg-type]
    assert peaks(odd).active_bytes == peaks(tape).active_bytes
