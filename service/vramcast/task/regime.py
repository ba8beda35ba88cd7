"""The kind of run: what makes two runs of one architecture err alike, or not."""

from __future__ import annotations

from itertools import product

from vramcast.task.task import Task
from vramcast.task.vocabulary import Kind, Precision, Quantization

_FULL, _LORA, _QUANTIZED, _INFERENCE = "", "lora", "quantized", "inference"
_SIXTEEN_BIT, _SHARDED = "16-bit", "sharded"
# Every name, the plain one (fp32, all weights trained, one GPU) first.
REGIMES = tuple(
    "-".join(word for word in words if word)
    for words in product(("", _SIXTEEN_BIT), (_FULL, _LORA, _QUANTIZED, _INFERENCE), ("", _SHARDED))
)


def regime(task: Task) -> str:
    """One of REGIMES."""
    precision = "" if task.precision is Precision.FP32 else _SIXTEEN_BIT
    sharding = _SHARDED if task.zero_stage or task.data_parallel_size > 1 else ""
    return "-".join(word for word in (precision, _method(task), sharding) if word)


def _method(task: Task) -> str:
    if task.kind is Kind.INFERENCE:
        return _INFERENCE
    if task.quantization is not Quantization.NONE:
        return _QUANTIZED
    return _LORA if task.lora_rank else _FULL
