"""The settings in which the models of the catalog are recorded.

A recording answers every batch, length and LoRA rank. The optimizer, sharding, accumulation, offload and the allocator
are added when a task is forecast. What is left has one recording for each way that people run it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from vramcast.task.task import Task
from vramcast.task.vocabulary import Attention, Kernels, Kind, LoraTargets, Precision, Quantization

# Any rank will do: it is one of the recording's variables.
_LORA = {"lora-rank": "16"}
_ATTENTION_LORA = {**_LORA, "lora-targets": "attention"}
_QV_LORA = {**_LORA, "lora-targets": "qv"}  # PEFT's default for most language models
_CHECKPOINTED = {"gradient-checkpointing": "true"}
_BF16 = {"precision": "bf16"}
_AMP = {"precision": "amp-bf16"}
_FP32 = {"precision": "fp32"}
_NF4, _INT4, _INT8 = ({"quantization": bits} for bits in ("nf4", "int4", "int8"))
_FUSED, _LIGER = ({"kernels": kernels} for kernels in ("fused", "liger"))
_PLAIN_NF4, _PLAIN_INT8 = ({**bits, "upcast": "false"} for bits in (_NF4, _INT8))
_EAGER = {"attention": "eager"}
_USUAL = {**_BF16, **_CHECKPOINTED}
# The most frequent first, as values of the annotations. All language models have these.
_FREQUENT: dict[str, Mapping[str, str]] = {
    "16-bit lora checkpointed": {**_USUAL, **_LORA},
    "16-bit lora": {**_BF16, **_LORA},
    "16-bit nf4 upcast lora checkpointed": {**_USUAL, **_NF4, **_LORA},
    "16-bit full checkpointed": _USUAL,
    "16-bit full": _BF16,
    "16-bit inference": {**_BF16, "task": "inference"},
    "amp full checkpointed": {**_AMP, **_CHECKPOINTED},
    "amp full": _AMP,
    "fp32 full": _FP32,
    "16-bit nf4 upcast lora": {**_BF16, **_NF4, **_LORA},
    "16-bit nf4 lora checkpointed": {**_USUAL, **_PLAIN_NF4, **_LORA},
}
_EAGER_AMP = "amp full eager"  # of networks that read images too
# Only models that many people run, or that others measured, have these. For the rest something stands in, or layers
# tell (eager attention).
_RARE: dict[str, Mapping[str, str]] = {
    "16-bit lora checkpointed eager": {**_USUAL, **_LORA, **_EAGER},
    "16-bit full eager": {**_BF16, **_EAGER},
    "16-bit full checkpointed eager": {**_USUAL, **_EAGER},
    "16-bit lora eager": {**_BF16, **_LORA, **_EAGER},
    "fp32 full eager": {**_FP32, **_EAGER},
    _EAGER_AMP: {**_AMP, **_EAGER},
    "fp32 full checkpointed": {**_FP32, **_CHECKPOINTED},
    "16-bit attention lora checkpointed": {**_USUAL, **_ATTENTION_LORA},
    "16-bit attention lora": {**_BF16, **_ATTENTION_LORA},
    "16-bit qv lora checkpointed": {**_USUAL, **_QV_LORA},
    "16-bit qv lora": {**_BF16, **_QV_LORA},
    "16-bit nf4 upcast attention lora checkpointed": {**_USUAL, **_NF4, **_ATTENTION_LORA},
    "16-bit nf4 attention lora checkpointed": {**_USUAL, **_PLAIN_NF4, **_ATTENTION_LORA},
    "16-bit lora checkpointed liger": {**_USUAL, **_LORA, **_LIGER},
    "16-bit full checkpointed liger": {**_USUAL, **_LIGER},
    "16-bit full liger": {**_BF16, **_LIGER},
    "16-bit lora liger": {**_BF16, **_LORA, **_LIGER},
    "16-bit nf4 upcast lora checkpointed liger": {**_USUAL, **_NF4, **_LORA, **_LIGER},
    "16-bit int8 upcast lora checkpointed": {**_USUAL, **_INT8, **_LORA},
    "16-bit int4 lora checkpointed": {**_USUAL, **_INT4, **_LORA},
    "16-bit int4 attention lora checkpointed": {**_USUAL, **_INT4, **_ATTENTION_LORA},
    "16-bit full checkpointed fused": {**_USUAL, **_FUSED},
    "16-bit attention lora checkpointed fused": {**_USUAL, **_ATTENTION_LORA, **_FUSED},
    "16-bit nf4 attention lora checkpointed fused": {**_USUAL, **_PLAIN_NF4, **_ATTENTION_LORA, **_FUSED},
    "16-bit int4 attention lora checkpointed fused": {**_USUAL, **_INT4, **_ATTENTION_LORA, **_FUSED},
}
# Of denoisers: the base in 8 bits, and adapters of its attention.
_DENOISERS: dict[str, Mapping[str, str]] = {
    "16-bit int8 attention lora checkpointed": {**_USUAL, **_PLAIN_INT8, **_ATTENTION_LORA},
    "16-bit int8 attention lora": {**_BF16, **_PLAIN_INT8, **_ATTENTION_LORA},
}
# Of networks other than language models.
PLAIN_VARIANTS = ("amp full", "16-bit full", "fp32 full", _EAGER_AMP)
# Of denoisers, which people fine-tune.
DENOISER_VARIANTS = (
    "16-bit attention lora checkpointed", "16-bit attention lora", *_DENOISERS, "amp full checkpointed", "amp full",
    "16-bit full checkpointed", "16-bit full", "fp32 full",
)  # fmt: skip
FREQUENT_VARIANTS = tuple(_FREQUENT)
LANGUAGE_VARIANTS = (*_FREQUENT, *_RARE)
VARIANTS = {**_FREQUENT, **_RARE, **_DENOISERS}

_WEIGHTS = {
    Precision.BF16: "16-bit", Precision.FP16: "16-bit", Precision.AMP_BF16: "amp", Precision.AMP_FP16: "amp",
    Precision.FP32: "fp32", Precision.TF32: "fp32",
}  # fmt: skip
_WORDS = frozenset(LoraTargets)  # other targets are names of modules
_TARGETS = {LoraTargets.ALL_LINEAR: "lora", LoraTargets.ATTENTION: "attention lora", LoraTargets.QV: "qv lora"}


def variant_of(task: Task) -> str | None:
    """None: nobody recorded these settings.

    Flash attention is no variant of its own: in 16 bits torch chooses its flash kernel by itself.
    """
    name = _name(task)
    return name if name in VARIANTS else None


def _name(task: Task) -> str:
    """Empty if no variant can have these settings."""
    weights, way = _WEIGHTS.get(task.precision), _way(task)
    if weights is None or not way:
        return ""
    attention = " eager" if task.attention is Attention.EAGER else ""
    if task.kind is Kind.INFERENCE:
        return f"{weights} inference{attention}" if way == "full" and task.kernels is Kernels.NONE else ""
    checkpointed = " checkpointed" if task.gradient_checkpointing else ""
    kernels = "" if task.kernels is Kernels.NONE else f" {task.kernels}"
    return f"{weights} {way}{checkpointed}{kernels}{attention}"


def _way(task: Task) -> str:
    """What is trained, and the format of the rest."""
    if task.lora_rank is None:
        return "full" if task.quantization is Quantization.NONE else ""
    targets = _TARGETS.get(LoraTargets(task.lora_targets)) if task.lora_targets in _WORDS else None
    frozen = "" if task.quantization is Quantization.NONE else f"{task.quantization} "
    upcast = "upcast " if task.upcasts else ""
    return f"{frozen}{upcast}{targets}" if targets else ""


# What may stand in for a setting, the nearest first: never something that needs less memory.
_KERNELS_FOR = {Kernels.LIGER: (Kernels.FUSED, Kernels.NONE), Kernels.FUSED: (Kernels.NONE,)}
_TARGETS_FOR = {LoraTargets.QV: (LoraTargets.ATTENTION, LoraTargets.ALL_LINEAR),
                LoraTargets.ATTENTION: (LoraTargets.ALL_LINEAR,), LoraTargets.ALL_LINEAR: ()}  # fmt: skip
_FORMAT_FOR = {Quantization.INT4: (Quantization.NF4,)}


def stand_ins(task: Task) -> Iterator[Task]:
    """The task itself, then the same with settings that take as much memory or a little more, fewest changes first.

    A forecast from a recording of nearly the same steps is closer than one from layers. Each says what was replaced.
    """
    targets = (
        _TARGETS_FOR.get(LoraTargets(task.lora_targets), ())
        if task.lora_targets in _WORDS
        else (LoraTargets.ALL_LINEAR,)
    )
    choices = (
        [("quantization", value) for value in (task.quantization, *_FORMAT_FOR.get(task.quantization, ()))],
        [("lora_targets", value) for value in (task.lora_targets, *(targets if task.lora_rank is not None else ()))],
        [("kernels", value) for value in (task.kernels, *_KERNELS_FOR.get(task.kernels, ()))],
    )
    changes = [
        [(name, value) for name, value in chosen if getattr(task, name) != value] for chosen in product(*choices)
    ]
    for changed in sorted(changes, key=len):
        notes = (f"{name.replace('_', '-')} {getattr(task, name)} counted as {value}" for name, value in changed)
        nearest: dict[str, Any] = dict(changed)
        if "quantization" in nearest:
            nearest["upcast"] = False  # as what it stands in for
        yield replace(task, **nearest, assumptions=(*task.assumptions, *notes)) if changed else task


def shown_settings(task: Task) -> str:
    """The settings that a variant depends on, as a forecast tells them."""
    said: dict[str, object] = {"precision": task.precision}
    if task.kind is Kind.INFERENCE:
        said["task"] = task.kind
    if task.lora_rank is not None:
        said |= {"lora-rank": task.lora_rank, "lora-targets": task.lora_targets}
    if task.quantization is not Quantization.NONE:
        said["quantization"] = task.quantization
        said |= {"upcast": str(task.upcast).lower()} if task.upcast is not None else {}
    if task.attention is not None:
        said["attention"] = task.attention
    if task.kernels is not Kernels.NONE:
        said["kernels"] = task.kernels
    if task.gradient_checkpointing:
        said["gradient-checkpointing"] = "true"
    return ", ".join(f"{name} {value}" for name, value in said.items())
