"""The annotations that a pod may carry, as one table: parsing, messages and documentation are all made from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from vramcast.core.quantity import MIB, ceil_mib, parse_quantity

PREFIX = "vramcast.dev/"

# Kubernetes allows 256 KiB of annotations in all; only a profile has a reason to be long.
MAX_VALUE_LENGTH = 256
MAX_PROFILE_LENGTH = 64 * 1024
MAX_GPU_MEMORY_MIB = 1 << 20  # 1 TiB on one GPU: no product is near it, so more is a mistake in the unit


class Level(StrEnum):
    """How a task is described; what stands lower says more."""

    GIVEN = "given"
    SUMMARY = "summary"
    NAME = "name"
    PROFILE = "profile"


class Kind(StrEnum):
    TRAINING = "training"
    FINE_TUNING = "fine-tuning"
    INFERENCE = "inference"


class Architecture(StrEnum):
    MLP = "mlp"
    CNN = "cnn"
    TRANSFORMER = "transformer"
    RNN = "rnn"
    DIFFUSION = "diffusion"
    GNN = "gnn"


class Precision(StrEnum):
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    AMP_FP16 = "amp-fp16"
    AMP_BF16 = "amp-bf16"
    FP8 = "fp8"
    INT8 = "int8"


class Optimizer(StrEnum):
    SGD = "sgd"
    SGD_MOMENTUM = "sgd-momentum"
    ADAM = "adam"
    ADAMW = "adamw"
    RMSPROP = "rmsprop"
    ADAGRAD = "adagrad"
    ADAFACTOR = "adafactor"
    LION = "lion"
    ADAM8BIT = "adam8bit"


class Quantization(StrEnum):
    NONE = "none"
    INT8 = "int8"
    INT4 = "int4"
    NF4 = "nf4"


Value = str | int | float | bool | tuple[int, ...] | StrEnum


@dataclass(frozen=True, slots=True)
class Key:
    """One annotation: how its value is read, and what a user is told about it."""

    name: str
    parse: Callable[[str], Value]
    meaning: str
    example: str
    levels: tuple[Level, ...] = ()  # the levels of description that it belongs to; empty: always allowed
    max_length: int = MAX_VALUE_LENGTH

    @property
    def annotation(self) -> str:
        return PREFIX + self.name


def _one_of(kinds: type[StrEnum]) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        try:
            return kinds(text.strip().lower())
        except ValueError:
            raise ValueError(f"expected one of {', '.join(kinds)}") from None

    return parse


_COUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:[eE]\+?(\d{1,2}))?\s*([kKmMgGbBtT]?)", re.ASCII)
_COUNT_UNITS = {"": 0, "k": 3, "m": 6, "g": 9, "b": 9, "t": 12}


def _count(low: int, high: int, example: str) -> Callable[[str], Value]:
    """A whole number, as people write it: 25600000, 25.6M, 7B, 7e9."""

    def parse(text: str) -> Value:
        match = _COUNT.fullmatch(text.strip()) if len(text) <= 40 else None
        if match is None:
            raise ValueError(f"expected a whole number from {low} to {high}, such as {example}")
        value = Fraction(match[1]) * Fraction(10) ** (int(match[2] or 0) + _COUNT_UNITS[match[3].lower()])
        if value.denominator != 1 or not low <= value <= high:
            raise ValueError(f"expected a whole number from {low} to {high}, such as {example}")
        return int(value)

    return parse


def _gpu_memory(text: str) -> Value:
    """MiB, rounded up. A bare `16` is 16 bytes to Kubernetes, and never what was meant."""
    try:
        size_bytes = parse_quantity(text)
    except ValueError as error:
        raise ValueError(f"expected {error}") from None
    if size_bytes <= 0:
        raise ValueError("expected more than nothing, such as 16Gi")
    if size_bytes < MIB:
        meant = f" (did you mean {text.strip()}Gi?)" if text.strip().isdigit() else ""
        raise ValueError(f"that is less than 1Mi: the unit is bytes unless one is given{meant}")
    if ceil_mib(size_bytes) > MAX_GPU_MEMORY_MIB:
        raise ValueError("that is more than any GPU has (1Ti); it is the memory on one GPU, not of the whole job")
    return ceil_mib(size_bytes)


def _flag(text: str) -> Value:
    lowered = text.strip().lower()
    if lowered not in {"true", "false"}:
        raise ValueError('expected "true" or "false" (in quotes: an annotation is a string)')
    return lowered == "true"


def _risk(text: str) -> Value:
    try:
        risk = float(text)
    except ValueError:
        risk = float("nan")
    if not 0.0001 <= risk <= 0.5:
        raise ValueError("expected a probability from 0.0001 to 0.5, such as 0.01")
    return risk


def _dimensions(text: str) -> Value:
    parts = text.strip().lower().split("x")
    if not 1 <= len(parts) <= 5 or not all(re.fullmatch(r"[1-9][0-9]{0,6}", part) for part in parts):
        raise ValueError("expected the size of one sample such as 3x224x224, without the batch")
    return tuple(int(part) for part in parts)


def _text(expected: str) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        if not text.strip():
            raise ValueError(f"expected {expected}")
        return text.strip()

    return parse


_SUMMARY = (Level.SUMMARY,)
_DESCRIBED = (Level.SUMMARY, Level.NAME, Level.PROFILE)

KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key("gpu-memory", _gpu_memory, "memory needed on each GPU, all in: no forecast is made", "16Gi"),
        Key("share", _flag, "may sit on one GPU beside other pods (and asks for no nvidia.com/gpu)", '"true"'),
        Key("gpus", _count(1, 64, "2"), "how many GPUs, for a pod that shares them", '"1"'),
        Key("max-oom-risk", _risk, "how likely an out-of-memory may be at most", "0.01"),
        Key("architecture", _one_of(Architecture), "family of the network", "cnn", _SUMMARY),
        Key("parameters", _count(1, 10**13, "25.6M"), "weights in the network", "25.6M", _SUMMARY),
        Key("layers", _count(1, 10**5, "50"), "layers in the network", '"50"', _SUMMARY),
        Key("activations", _count(1, 10**13, "11.1M"), "activation elements per sample, all layers", "11.1M", _SUMMARY),
        Key("model", _text("a name such as timm/resnet50"), "a model known by name", "timm/resnet50", (Level.NAME,)),
        Key("profile", _text("what `vramcast profile` printed"), "a layer profile of your own module", "v1:…",
            (Level.PROFILE,), MAX_PROFILE_LENGTH),
        Key("batch-size", _count(1, 10**7, "32"), "samples in a step on each GPU", '"32"', _DESCRIBED),
        Key("input-size", _dimensions, "size of one sample", "3x224x224", _DESCRIBED),
        Key("sequence-length", _count(1, 10**7, "512"), "tokens in one sample", '"512"', _DESCRIBED),
        Key("precision", _one_of(Precision), "number format of the run", "amp-bf16", _DESCRIBED),
        Key("optimizer", _one_of(Optimizer), "optimizer of the run", "adamw", _DESCRIBED),
        Key("task", _one_of(Kind), "what is run", "training", _DESCRIBED),
        Key("gradient-checkpointing", _flag, "activations are recomputed in the backward pass", '"true"', _DESCRIBED),
        Key("lora-rank", _count(1, 10**5, "16"), "rank of LoRA adapters; the base is frozen", '"16"', _DESCRIBED),
        Key("quantization", _one_of(Quantization), "format of frozen base weights", "nf4", _DESCRIBED),
        Key("zero-stage", _count(0, 3, "2"), "ZeRO/FSDP sharding stage", '"2"', _DESCRIBED),
        Key("data-parallel-size", _count(1, 10**5, "8"), "GPUs that states are sharded over", '"8"', _DESCRIBED),
    )
}  # fmt: skip


class Written(StrEnum):
    """What vramcast itself writes onto a pod, in the same write that binds it."""

    FORECAST_MEMORY = PREFIX + "forecast-memory"
    RESERVED_MEMORY = PREFIX + "reserved-memory"
    FORECAST_UTILIZATION = PREFIX + "forecast-utilization"
    GPU_INDICES = PREFIX + "gpu-indices"
    MODEL_VERSION = PREFIX + "model-version"
    CALIBRATION = PREFIX + "calibration"
