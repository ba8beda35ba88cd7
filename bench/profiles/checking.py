"""A recording against fresh ones, at points that nobody recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.profiles.drawing import Drawn, draw_points, outside

from vramcast.errors import InvalidInput
from vramcast.forecast.peaks import peaks
from vramcast.forecast.recording import Recording
from vramcast.forecast.sizes import Point
from vramcast.forecast.storage import decode, encode
from vramcast.forecast.tape import Tape
from vramcast.profile.recording.errors import Unrecordable
from vramcast.profile.recording.network import solve_network

MOST_ERROR = 0.005
MOST_ERROR_OF_A_NEIGHBOUR = 0.01
# A network that refuses a length or side gets another one.
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Compared:
    """What the recording says of a point, less what a fresh one says, as shares of the fresh one."""

    point: Point
    active_error: float
    reserved_error: float
    notes: tuple[str, ...]

    @property
    def from_neighbour(self) -> bool:
        return any("was not recorded" in note for note in self.notes)

    @property
    def error(self) -> float:
        return max(abs(self.active_error), abs(self.reserved_error))

    @property
    def holds(self) -> bool:
        return self.error <= (MOST_ERROR_OF_A_NEIGHBOUR if self.from_neighbour else MOST_ERROR)


@dataclass(frozen=True, slots=True)
class Checked:
    drawn: Drawn
    characters: int
    pieces: int
    events: int
    compared: tuple[Compared, ...]
    refuses_outside: bool

    @property
    def error(self) -> float:
        return max(one.error for one in self.compared)

    @property
    def holds(self) -> bool:
        return self.refuses_outside and all(one.holds for one in self.compared)


def check(drawn: Drawn, record: Callable[[Point], Tape], points: int, seed: int) -> Checked:
    """Raises Unrecordable. `record` makes a fresh recording at a point."""
    inputs = drawn.source.inputs(drawn.source.base)
    text = encode(solve_network(record, inputs, drawn.settings, {}))
    recording = decode(text)
    compared: list[Compared] = []
    for point in draw_points(recording, drawn.source.name, _TRIES * points, seed):
        if len(compared) < points and (fresh := _fresh(record, point)) is not None:
            compared.append(compare(recording, point, fresh))
    if not compared:
        raise Unrecordable("the network runs at none of the points that were drawn")
    events = sum(len(piece.template.events) for piece in recording.pieces)
    says_so = _refuses(recording, outside(recording, compared[0].point))
    return Checked(drawn, len(text), len(recording.pieces), events, tuple(compared), says_so)


def _fresh(record: Callable[[Point], Tape], point: Point) -> Tape | None:
    try:
        return record(point)
    except Unrecordable:
        return None


def compare(recording: Recording, point: Point, fresh: Tape) -> Compared:
    answer = recording.at(point)
    solved, true = peaks(answer.tape), peaks(fresh)
    return Compared(
        point,
        solved.active_bytes / true.active_bytes - 1,
        solved.reserved_bytes / true.reserved_bytes - 1,
        answer.notes,
    )


def _refuses(recording: Recording, point: Point) -> bool:
    try:
        recording.at(point)
    except InvalidInput:
        return True
    return False
