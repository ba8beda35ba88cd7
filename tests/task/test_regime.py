from __future__ import annotations

import pytest

from vramcast.task.regime import REGIMES, regime
from vramcast.task.task import Task
from vramcast.task.vocabulary import Kind, Level, Precision, Quantization


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (Task(Level.NAME), ""),
        (Task(Level.NAME, precision=Precision.AMP_FP16), "16-bit"),
        (Task(Level.NAME, precision=Precision.BF16, lora_rank=16), "16-bit-lora"),
        (Task(Level.NAME, precision=Precision.BF16, lora_rank=16, quantization=Quantization.NF4), "16-bit-quantized"),
        (Task(Level.NAME, precision=Precision.BF16, zero_stage=3, data_parallel_size=4), "16-bit-sharded"),
        (Task(Level.NAME, kind=Kind.INFERENCE), "inference"),
    ],
)
def test_what_errs_alike_has_one_name(task: Task, name: str) -> None:
    assert regime(task) == name
    assert name in REGIMES


def test_names_are_few_and_distinct() -> None:
    assert len(set(REGIMES)) == len(REGIMES) == 16
