"""The settings in which the models of the catalog are recorded.

A recording answers every batch, length and LoRA rank. The optimizer, sharding, accumulation, offload and the allocator
are added when a task is forecast. What is left has one recording for each way that people run it.
"""

from __future__ import annotations

from collections.abc import Mapping

from vramcast.task.task import Task
from vramcast.task.vocabulary import Attention, Kernels, Kind, LoraTargets, Precision, Quantization

# Any rank will do: it is one of the recording's variables.
_LORA = {"lora-rank": "16"}
_ATTENTION_LORA = {**_LORA, "lora-targets": "attention"}
_NF4_LORA = {**_LORA, "quantization": "nf4"}
_CHECKPOINTED = {"gradient-checkpointing": "true"}
_BF16 = {"precision": "bf16"}
_AMP = {"precision": "amp-bf16"}
_FP32 = {"precision": "fp32"}
# The most frequent first, as values of the annotations.
VARIANTS: dict[str, Mapping[str, str]] = {
    "16-bit lora checkpointed": {**_BF16, **_LORA, **_CHECKPOINTED},
    "16-bit lora": {**_BF16, **_LORA},
    "16-bit nf4 lora checkpointed": {**_BF16, **_NF4_LORA, **_CHECKPOINTED},
    "16-bit full checkpointed": {**_BF16, **_CHECKPOINTED},
    "16-bit full": _BF16,
    "16-bit inference": {**_BF16, "task": "inference"},
    "16-bit nf4 lora": {**_BF16, **_NF4_LORA},
    "amp full checkpointed": {**_AMP, **_CHECKPOINTED},
    "amp full": _AMP,
    "fp32 full checkpointed": {**_FP32, **_CHECKPOINTED},
    "fp32 full": _FP32,
    "16-bit attention lora checkpointed": {**_BF16, **_ATTENTION_LORA, **_CHECKPOINTED},
    "16-bit attention lora": {**_BF16, **_ATTENTION_LORA},
}
# Of networks other than language models.
PLAIN_VARIANTS = ("amp full", "16-bit full", "fp32 full")

_WEIGHTS = {
    Precision.BF16: "16-bit", Precision.FP16: "16-bit", Precision.AMP_BF16: "amp", Precision.AMP_FP16: "amp",
    Precision.FP32: "fp32", Precision.TF32: "fp32",
}  # fmt: skip
_WAYS: dict[tuple[Quantization, str], str] = {
    (Quantization.NONE, ""): "full", (Quantization.NONE, LoraTargets.ALL_LINEAR): "lora",
    (Quantization.NONE, LoraTargets.ATTENTION): "attention lora",
    (Quantization.NF4, LoraTargets.ALL_LINEAR): "nf4 lora",
}  # fmt: skip


def variant_of(task: Task) -> str | None:
    """None: nobody recorded these settings.

    Flash attention is no variant of its own: in 16 bits torch chooses its flash kernel by itself.
    """
    weights = _WEIGHTS.get(task.precision)
    way = _WAYS.get((task.quantization, "" if task.lora_rank is None else task.lora_targets))
    if weights is None or way is None or task.kernels is not Kernels.NONE or task.attention is Attention.EAGER:
        return None
    if task.kind is Kind.INFERENCE:
        name = f"{weights} inference" if way == "full" else ""
    else:
        name = f"{weights} {way}{' checkpointed' if task.gradient_checkpointing else ''}"
    return name if name in VARIANTS else None


def shown_settings(task: Task) -> str:
    """The settings that a variant depends on, as a forecast tells them."""
    said: dict[str, object] = {"precision": task.precision}
    if task.kind is Kind.INFERENCE:
        said["task"] = task.kind
    if task.lora_rank is not None:
        said |= {"lora-rank": task.lora_rank, "lora-targets": task.lora_targets}
    if task.quantization is not Quantization.NONE:
        said["quantization"] = task.quantization
    if task.attention is not None:
        said["attention"] = task.attention
    if task.kernels is not Kernels.NONE:
        said["kernels"] = task.kernels
    if task.gradient_checkpointing:
        said["gradient-checkpointing"] = "true"
    return ", ".join(f"{name} {value}" for name, value in said.items())
