"""A tape that contradicts itself is refused when it is built."""

from __future__ import annotations

import pytest

from tests.forecast.tapes import tape_of
from vramcast.errors import InvalidInput
from vramcast.forecast.tape import Mark, Moment


def test_storages_are_made_in_order_and_freed_once() -> None:
    tape = tape_of([512, 100], [0, 1, ~0, ~1], (Mark(0, Moment.STEP), Mark(4, Moment.END)))
    assert tape.events.tolist() == [0, 1, -1, -2]


def test_an_empty_tape_is_a_tape() -> None:
    assert not len(tape_of([], []).events)


@pytest.mark.parametrize(
    ("sizes", "events", "message"),
    [
        ([1, 1], [1, 0], "in order, each once"),
        ([1, 1], [0], "in order, each once"),
        ([1], [0, 0], "in order, each once"),
        ([1], [0, ~0, ~0], "twice, or one that does not exist"),
        ([1], [0, ~1], "twice, or one that does not exist"),
        ([1], [~0, 0], "before it is made"),
        ([-1], [0], "negative size"),
    ],
)
def test_events_that_no_run_can_have_are_refused(sizes: list[int], events: list[int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        tape_of(sizes, events)


def test_marks_must_be_in_order_and_inside() -> None:
    with pytest.raises(InvalidInput, match="the STEP mark before event 0 is out of order"):
        tape_of([1], [0], (Mark(1, Moment.FORWARD), Mark(0, Moment.STEP)))
    with pytest.raises(InvalidInput, match="END mark before event 2"):
        tape_of([1], [0], (Mark(2, Moment.END),))


def test_every_storage_has_a_known_role_and_one_stream() -> None:
    with pytest.raises(InvalidInput, match="roles are numbers below 9"):
        tape_of([1], [0], roles=[9])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="as many streams or none"):
        tape_of([1, 1], [0, 1], streams=[1])
