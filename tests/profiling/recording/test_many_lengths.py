"""Batches of many lengths, made from equal ones, are those that a loop over such batches records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import nn

from tests.profiling.recording.networks import llama, tokens
from vramcast.forecast.many_batches import many_batches
from vramcast.forecast.peaks import peaks
from vramcast.forecast.tape import Tape
from vramcast.profile.recording.record import record_model
from vramcast.profile.recording.settings import RunSettings
from vramcast.task.vocabulary import Optimizer, Precision

LENGTHS = (96, 160, 32, 128, 192, 64)
SETTINGS = {
    "all weights": RunSettings(optimizer=Optimizer.ADAMW),
    "LoRA, checkpointed": RunSettings(precision=Precision.BF16, lora_rank=4, gradient_checkpointing=True),
    "under autocast": RunSettings(precision=Precision.AMP_BF16, optimizer=Optimizer.ADAMW),
}


def network() -> nn.Module:
    return llama(vocab_size=8192, hidden_size=256, intermediate_size=512)


def of_many_lengths() -> Callable[[], Any]:
    lengths = iter(LENGTHS)

    def batch() -> Any:
        return tokens(length=next(lengths))()

    return batch


@pytest.mark.parametrize("name", SETTINGS)
def test_repeated_batches_are_those_of_a_loop_over_batches_of_many_lengths(name: str) -> None:
    def equal(length: int) -> Tape:
        return record_model(network, tokens(length=length), SETTINGS[name])

    real = record_model(network, of_many_lengths(), SETTINGS[name], steps=len(LENGTHS))
    mine = many_batches(equal(LENGTHS[0]), len(LENGTHS)).tape(LENGTHS, lambda length: equal(length).sizes)
    for array in ("events", "sizes", "roles"):
        assert np.array_equal(getattr(mine, array), getattr(real, array)), array
    assert peaks(mine).reserved_bytes == peaks(real).reserved_bytes > peaks(equal(max(LENGTHS))).reserved_bytes
