"""The updates that `forecast/update.py` writes into a tape are those that real optimizers make."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from torch import nn

from tests.profiling.recording.networks import Tower, llama, sequences, tokens
from vramcast.forecast.accumulation import accumulated
from vramcast.forecast.peaks import peaks
from vramcast.forecast.tape import Tape
from vramcast.forecast.update import with_update
from vramcast.profile.recording.record import record_model
from vramcast.profile.recording.settings import RunSettings
from vramcast.task.vocabulary import Optimizer, Precision


@cache
def left_open(precision: Precision) -> Tape:
    return record_model(Tower, sequences(), RunSettings(precision=precision))


def element_bytes(precision: Precision) -> int:
    return 4 if precision is Precision.FP32 else 2


def assert_same(mine: Tape, real: Tape) -> None:
    for name in ("sizes", "roles", "events"):
        assert np.array_equal(getattr(mine, name), getattr(real, name)), name
    assert mine.marks == real.marks


PLAIN = [kind for kind in Optimizer if kind is not Optimizer.ADAFACTOR]
FUSED = [Optimizer.SGD_MOMENTUM, Optimizer.ADAMW]


@pytest.mark.parametrize(
    ("optimizer", "precision", "fused"),
    [
        *((kind, precision, False) for kind in PLAIN for precision in (Precision.FP32, Precision.BF16)),
        *((kind, Precision.FP32, True) for kind in FUSED),
    ],
)
def test_the_written_update_is_the_recorded_one(optimizer: Optimizer, precision: Precision, fused: bool) -> None:
    real = record_model(
        Tower, sequences(), RunSettings(precision=precision, optimizer=optimizer, fused_optimizer=fused)
    )
    mine = with_update(left_open(precision), optimizer, element_bytes=element_bytes(precision), fused=fused)
    assert_same(mine, real)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_adafactors_update_has_the_recorded_peak(precision: Precision) -> None:
    """A tape has no shapes, so its means per row and column are not exact."""

    def build() -> nn.Module:
        return llama(hidden_size=512, intermediate_size=1024)

    plain = record_model(build, tokens(length=8), RunSettings(precision=precision))
    real = peaks(record_model(build, tokens(length=8), RunSettings(precision=precision, optimizer=Optimizer.ADAFACTOR)))
    mine = peaks(with_update(plain, Optimizer.ADAFACTOR, element_bytes=element_bytes(precision)))
    assert mine.active_bytes == pytest.approx(real.active_bytes, rel=0.02)


@pytest.mark.parametrize("batches", [2, 5])
def test_written_accumulation_has_the_recorded_peaks(batches: int) -> None:
    plain = record_model(llama, tokens(), RunSettings())
    real = peaks(record_model(llama, tokens(), RunSettings(accumulation=batches, optimizer=Optimizer.ADAMW)))
    mine = peaks(with_update(accumulated(plain, batches), Optimizer.ADAMW))
    assert (mine.active_bytes, mine.reserved_bytes) == (real.active_bytes, real.reserved_bytes)
