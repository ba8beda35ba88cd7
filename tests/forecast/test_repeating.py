"""The last step once more: for recorders that need not run it, and for gradient accumulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.forecast.steps import Model, recorded
from vramcast.errors import InvalidInput
from vramcast.forecast.repeating import repeated, with_step_again
from vramcast.forecast.tape import Tape


def same(one: Tape, other: Tape) -> bool:
    arrays = ("sizes", "roles", "units", "events")
    return one.marks == other.marks and all(np.array_equal(getattr(one, a), getattr(other, a)) for a in arrays)


@pytest.mark.parametrize("steps", [2, 3])
def test_a_step_that_is_copied_is_the_step_that_would_have_been_run(steps: int) -> None:
    longer = repeated(recorded(Model(steps=steps)))
    assert longer is not None
    assert same(longer, recorded(Model(steps=steps + 1)))


def test_steps_of_other_sizes_are_not_copied() -> None:
    tape = recorded(Model(steps=2))
    sizes = tape.sizes.copy()
    sizes[-1] += 512
    assert repeated(tape.resized(sizes)) is None


def test_one_step_tells_nothing_about_the_next() -> None:
    assert repeated(recorded(Model(steps=1))) is None
    with pytest.raises(InvalidInput, match="do not repeat"):
        with_step_again(recorded(Model(steps=1)))


def test_a_tape_that_does_not_end_is_not_continued() -> None:
    tape = recorded(Model(steps=2))
    assert repeated(replace(tape, marks=tape.marks[:-1])) is None
