"""Samples of different lengths: the batch that takes most decides, and it is longer than the mean.

The measured runs had questions with worked answers. Their longest sample was eight times as long as the mean. With each
doubling of the batch, the mean of padded batches grew by 0.29 of the samples' mean. Other data differ. The bounds of
such runs are as wide as forecasts of measured ones were off.
"""

from __future__ import annotations

from dataclasses import replace
from math import log2

from vramcast.task.task import Task
from vramcast.task.vocabulary import Length

_LONGEST_TO_MEAN = 8
_PADDED_BY_DOUBLING = 0.29
# The lengths of batches in a row, in twelfths of the longest: multiples of 5 modulo 13, which rise and fall like a
# shuffled epoch's.
_TWELFTHS = tuple(5 * turn % 13 for turn in range(1, 13))


def at_longest(task: Task) -> Task:
    """The task with the tokens per sample of its largest batch; the same if these are what it says."""
    mean = task.sequence_length
    if mean is None or task.length in (Length.FIXED, Length.LONGEST):
        return task
    if task.length is Length.PADDED:
        tokens = round(mean * _LONGEST_TO_MEAN / (1.0 + _PADDED_BY_DOUBLING * log2(task.batch_size)))
    else:  # the longest sample, and mean ones beside it
        tokens = -(-mean * (_LONGEST_TO_MEAN + task.batch_size - 1) // task.batch_size)
    note = f"sequence-length {tokens}, of the largest batch, for a mean of {mean} in {task.length} batches"
    return replace(task, sequence_length=tokens, assumptions=(*task.assumptions, note))


def drawn(longest: int) -> tuple[int, ...]:
    """Lengths of consecutive batches, the longest among them."""
    return tuple(max(1, longest * part // 12) for part in _TWELFTHS)
