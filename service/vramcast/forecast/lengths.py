"""Samples of different lengths: the batch that takes most decides, and it is longer than the mean.

The measured runs had questions with worked answers: their longest sample was nine times as long as the mean, and five
times as long as the mean of padded batches. Other data differ; the bounds of such runs are as wide as measured ones
were off.
"""

from __future__ import annotations

from dataclasses import replace

from vramcast.task.task import Task
from vramcast.task.vocabulary import Length

_LONGEST_TO_MEAN = 9
_LONGEST_TO_PADDED_MEAN = 5


def at_longest(task: Task) -> Task:
    """The task with the tokens per sample of its largest batch; the same if these are what it says."""
    mean = task.sequence_length
    if mean is None or task.length in (Length.FIXED, Length.LONGEST):
        return task
    if task.length is Length.PADDED:
        tokens = mean * _LONGEST_TO_PADDED_MEAN
    else:  # the longest sample, and mean ones beside it
        tokens = -(-mean * (_LONGEST_TO_MEAN + task.batch_size - 1) // task.batch_size)
    note = f"sequence-length {tokens}, of the largest batch, for a mean of {mean} in {task.length} batches"
    return replace(task, sequence_length=tokens, assumptions=(*task.assumptions, note))
