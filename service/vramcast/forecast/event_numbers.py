"""The events of a tape as numbers that repeat where its layers and steps repeat.

By age, a free says how many storages were made since. This is quick to read, but in a backward pass every layer has
other numbers. By stack, a free says how many storages that still live are newer, and what stays (weights, gradients,
states) is counted apart from what comes and goes. Then every layer has the same numbers, and compresses to a seventh.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidInput
from vramcast.forecast.tape import Role, Tape

_STAYS = frozenset({Role.WEIGHT, Role.FROZEN, Role.BUFFER, Role.GRADIENT, Role.STATE})
# Places that all frees together may be away from the top of their stack: each is moved by one.
_MOST_MOVES = 20_000_000
_BEFORE_THE_FIRST = "an event frees a storage before the first one"

Numbers = NDArray[np.int64]


def by_age(tape: Tape, kind_of: Numbers) -> Numbers:
    """Even: a storage of this kind is made. Odd: freed is the one that was made so many makings ago."""
    made = tape.events >= 0
    newest = np.cumsum(made) - 1
    numbers = 2 * (newest - ~tape.events.astype(np.int64)) + 1
    numbers[made] = 2 * kind_of
    return numbers


def from_ages(numbers: Numbers) -> tuple[NDArray[np.int32], Numbers]:
    """The events, and the kind of each storage. Raises InvalidInput."""
    made = numbers % 2 == 0
    newest = np.cumsum(made) - 1
    freed = newest - numbers // 2
    if (freed[~made] < 0).any():
        raise InvalidInput(_BEFORE_THE_FIRST)
    return np.where(made, newest, ~freed).astype(np.int32), numbers[made] // 2


def by_stack(tape: Tape, kind_of: Numbers) -> Numbers | None:
    """Of three numbers the first makes, and the others free from one of two stacks. None if frees are far down."""
    stacks: tuple[list[int], list[int]] = ([], [])
    which, kinds = np.isin(tape.roles, list(_STAYS)).tolist(), kind_of.tolist()
    numbers, moves = [], 0
    for event in tape.events.tolist():
        if event >= 0:
            stacks[which[event]].append(event)
            numbers.append(3 * kinds[event])
            continue
        stack = stacks[which[~event]]
        place = bisect_left(stack, ~event)
        newer = len(stack) - 1 - place
        moves += newer
        if moves > _MOST_MOVES:
            return None
        del stack[place]
        numbers.append(3 * newer + 1 + which[~event])
    return np.array(numbers, np.int64)


def from_stacks(numbers: Numbers, roles: Sequence[Role]) -> tuple[NDArray[np.int32], Numbers]:
    """The events, and the kind of each storage; `roles` are those of the kinds. Raises InvalidInput."""
    values, stack_of = numbers // 3, numbers % 3 - 1
    made = stack_of < 0
    kinds = values[made]
    if len(kinds) and kinds.max() >= len(roles):
        raise InvalidInput("an event makes a storage of an unknown kind")
    if values[~made].sum() > _MOST_MOVES:
        raise InvalidInput("its frees are too far from where they were made")
    stack_of[made] = np.array([role in _STAYS for role in roles], np.int64)[kinds]
    stacks: tuple[list[int], list[int]] = ([], [])
    events = np.where(made, np.cumsum(made) - 1, -1 - values).tolist()  # a free by its place from the top
    for at, (event, stack) in enumerate(zip(events, stack_of.tolist(), strict=True)):
        if event >= 0:
            stacks[stack].append(event)
        elif -event > len(stacks[stack]):
            raise InvalidInput(_BEFORE_THE_FIRST)
        else:
            events[at] = ~stacks[stack].pop(event)
    return np.array(events, np.int32), kinds
