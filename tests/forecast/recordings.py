"""Recordings for tests, made from networks whose sizes are known polynomials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tests.forecast.tapes import tape_of
from vramcast.forecast.recording import Recording, Span
from vramcast.forecast.sizes import Point, Variable
from vramcast.forecast.tape import Mark, Moment, Role, Tape
from vramcast.profile.solving import points_for, solve

B, L, S, R = Variable.BATCH, Variable.LENGTH, Variable.SIDE, Variable.RANK
LANGUAGE = {B: Span(2, 8), L: Span(128, 4096), R: Span(1, 64)}
VISION = {B: Span(2, 8), S: Span(128, 384, 32)}
Size = Callable[[Point], int]


def tape_with(sizes: Iterable[int], steps: int = 2) -> Tape:
    """A weight in unit 0, then steps that save one storage per further size and free them backwards."""
    weight, *saved = sizes
    all_sizes, events, marks = [weight], [0], []
    for _ in range(steps):
        marks += [Mark(len(events), Moment.STEP), Mark(len(events), Moment.FORWARD)]
        first = len(all_sizes)
        all_sizes += saved
        events += range(first, len(all_sizes))
        marks += [Mark(len(events), Moment.BACKWARD), Mark(len(events), Moment.ENTER_BACKWARD, 1)]
        events += [~number for number in range(len(all_sizes) - 1, first - 1, -1)]
        marks.append(Mark(len(events), Moment.UPDATE))
    marks.append(Mark(len(events), Moment.END))
    roles = [Role.WEIGHT, *[Role.SAVED] * (len(all_sizes) - 1)]
    units = [0, *[-1] * (len(all_sizes) - 1)]
    return tape_of(all_sizes, events, tuple(marks), roles, units=units)


def recorded(sizes: Iterable[Size], spans: Mapping[Variable, Span]) -> list[tuple[Point, Tape]]:
    each = list(sizes)
    return [(point, tape_with(size(point) for size in each)) for point in points_for(spans)]


def language_recording(info: Mapping[str, str] | None = None) -> Recording:
    """4 MiB of weights, activations of 64 B a token and rank 2 B, and a mask."""
    sizes: list[Size] = [
        lambda at: 4 << 20,
        lambda at: 4096 * at[B] * at[L],
        lambda at: 2 * at[B] * at[L] * at[R] + 512 * at[R],
        lambda at: at[B] * at[L] ** 2,
    ]
    return solve(recorded(sizes, LANGUAGE), info=info)
