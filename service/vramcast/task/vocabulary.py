"""The annotations that a pod may carry, as one table.

Parsing, messages, `vramcast annotations`, `--help`, the docs page and the JSON Schema are all made from it, so they
cannot drift apart. The same goes for the defaults, which forecasts list as assumptions, and for contradictions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from fractions import Fraction

from vramcast.task.quantity import MIB, ceil_mib, parse_quantity

PREFIX = "vramcast.dev/"

# Kubernetes allows 256 KiB of annotations in total. Only a profile needs to be long.
MAX_VALUE_LENGTH = 256
MAX_PROFILE_LENGTH = 64 * 1024


MAX_GPU_MEMORY_MIB = 1 << 20  # 1 TiB on one GPU: no product comes close, so more is a wrong unit

Value = str | int | float | bool | tuple[int, ...] | StrEnum


@dataclass(frozen=True, slots=True)
class Form:
    """How the text of an annotation is read. `parse` raises ValueError with what was expected.

    The schema's `pattern` or `choices` accept nothing that `parse` refuses, except numbers out of range.
    """

    parse: Callable[[str], Value]
    accepts: str
    pattern: str = ""
    choices: tuple[str, ...] = ()


def one_of(kinds: type[StrEnum], also_called: Mapping[str, str] | None = None) -> Form:
    """`also_called`: the words of other tools for the same thing."""
    listed = f"one of {', '.join(kinds)}"

    def parse(text: str) -> Value:
        word = text.strip().lower()
        try:
            return kinds(word)
        except ValueError:
            raise ValueError(f"expected {listed}{_meant(word, list(kinds), also_called or {})}") from None

    return Form(parse, listed, choices=tuple(kinds))


def _meant(word: str, words: list[str], also_called: Mapping[str, str]) -> str:
    near = get_close_matches(word.replace("_", "-")[:40], words, n=1, cutoff=0.6)
    meant = also_called.get(word) or (near[0] if near else "")
    return f" (did you mean {meant}?)" if meant else ""


_COUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:[eE]\+?(\d{1,2}))?\s*([kKmMgGbBtT]?)", re.ASCII)
_COUNT_UNITS = {"": 0, "k": 3, "m": 6, "g": 9, "b": 9, "t": 12}
# Whole numbers as people write them: 25600000, 25.6M, 7B, 7e9. A fraction needs a unit that makes it whole.
_COUNT_PATTERN = r"^([0-9]+([eE][0-9]{1,2})?[kKMGBT]?|[0-9]+\.[0-9]{1,3}[kKMGBT])$"
_FEW = 10


def count(low: int, high: int, example: str) -> Form:
    """A whole number as people write it: 25600000, 25.6M, 7B, 7e9."""
    accepts = f"a whole number from {low} to {high}, such as {example}"

    def parse(text: str) -> Value:
        match = _COUNT.fullmatch(text.strip()) if len(text) <= 40 else None
        if match is None:
            raise ValueError(f"expected {accepts}")
        value = Fraction(match[1]) * Fraction(10) ** (int(match[2] or 0) + _COUNT_UNITS[match[3].lower()])
        if value.denominator != 1 or not low <= value <= high:
            raise ValueError(f"expected {accepts}")
        return int(value)

    if high - low < _FEW:
        return Form(parse, accepts, choices=tuple(str(number) for number in range(low, high + 1)))
    return Form(parse, accepts, _COUNT_PATTERN)


def _parse_memory(text: str) -> Value:
    """MiB, rounded up. A bare `16` means 16 bytes to Kubernetes, which nobody intends."""
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


memory = Form(_parse_memory, "a Kubernetes quantity, such as 16Gi", r"^[0-9]+(\.[0-9]+)?(Mi|Gi|M|G)$")


def _parse_flag(text: str) -> Value:
    lowered = text.strip().lower()
    if lowered not in {"true", "false"}:
        raise ValueError('expected "true" or "false" (in quotes: an annotation is a string)')
    return lowered == "true"


flag = Form(_parse_flag, '"true" or "false"', choices=("true", "false"))


def _parse_risk(text: str) -> Value:
    try:
        risk = float(text)
    except ValueError:
        risk = float("nan")
    if not 0.0001 <= risk <= 0.5:
        raise ValueError(f"expected a probability from 0.0001 to 0.5, such as 0.01{_percent(text)}")
    return risk


def _percent(text: str) -> str:
    match = re.fullmatch(r"\s*([0-9]{1,2}(?:\.[0-9]{1,3})?)\s*%\s*", text)
    return f" (did you mean {float(match[1]) / 100:g}?)" if match else ""


risk = Form(_parse_risk, "a probability from 0.0001 to 0.5", r"^0?\.[0-9]+$")


def _parse_dimensions(text: str) -> Value:
    parts = text.strip().lower().split("x")
    if not 1 <= len(parts) <= 5 or not all(re.fullmatch(r"[1-9][0-9]{0,6}", part) for part in parts):
        raise ValueError("expected the size of one sample such as 3x224x224, without the batch")
    return tuple(int(part) for part in parts)


dimensions = Form(
    _parse_dimensions, "the size of one sample such as 3x224x224, without the batch",
    r"^[1-9][0-9]{0,6}(x[1-9][0-9]{0,6}){0,4}$",
)  # fmt: skip


def words(expected: str) -> Form:
    def parse(text: str) -> Value:
        if not text.strip():
            raise ValueError(f"expected {expected}")
        return text.strip()

    return Form(parse, expected, r"\S")


class Level(StrEnum):
    """How a task is described, from least to most detail."""

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


@dataclass(frozen=True, slots=True)
class Key:
    """One annotation: how its value is read, and its documentation."""

    name: str
    form: Form
    meaning: str
    example: str
    levels: tuple[Level, ...] = ()  # of description that it belongs to; empty: always allowed
    max_length: int = MAX_VALUE_LENGTH
    default: str = ""  # assumed by a forecast, and listed among its assumptions

    @property
    def annotation(self) -> str:
        return PREFIX + self.name

    @property
    def parse(self) -> Callable[[str], Value]:
        return self.form.parse


# Names used by Lightning, the HF Trainer and torch.
_PRECISIONS = {
    "float32": "fp32", "32": "fp32", "32-true": "fp32", "float16": "fp16", "half": "fp16", "16-true": "fp16",
    "bfloat16": "bf16", "bf16-true": "bf16", "16": "amp-fp16", "16-mixed": "amp-fp16", "amp": "amp-fp16",
    "mixed": "amp-fp16", "bf16-mixed": "amp-bf16",
}  # fmt: skip
_OPTIMIZERS = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw_8bit": "adam8bit",
    "adamw_bnb_8bit": "adam8bit", "paged_adamw_8bit": "adam8bit", "momentum": "sgd-momentum",
    "nesterov": "sgd-momentum",
}  # fmt: skip
_KINDS = {"train": "training", "pretraining": "training", "finetune": "fine-tuning", "sft": "fine-tuning",
          "predict": "inference", "serving": "inference", "eval": "inference"}  # fmt: skip
_ARCHITECTURES = {"convnet": "cnn", "resnet": "cnn", "vit": "transformer", "llm": "transformer", "bert": "transformer",
                  "lstm": "rnn", "gru": "rnn", "unet": "diffusion"}  # fmt: skip

_SUMMARY = (Level.SUMMARY,)
_DESCRIBED = (Level.SUMMARY, Level.NAME, Level.PROFILE)
# Of the usual optimizers AdamW needs the most memory, so the default errs on the safe side.
_OPTIMIZER = "adamw"

KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key("gpu-memory", memory, "memory needed on each GPU, everything included; no forecast is made", "16Gi"),
        Key("share", flag, "may share a GPU with other pods; the pod then asks for no GPU device", '"true"'),
        Key("gpus", count(1, 64, "2"), "number of GPUs, for a pod that shares them", '"1"'),
        Key("max-oom-risk", risk, "largest accepted probability of running out of GPU memory", "0.01"),
        Key("architecture", one_of(Architecture, _ARCHITECTURES), "family of the network", "cnn", _SUMMARY),
        Key("parameters", count(1, 10**13, "25.6M"), "weights in the network", "25.6M", _SUMMARY),
        Key("layers", count(1, 10**5, "50"), "layers in the network", '"50"', _SUMMARY),
        Key("activations", count(1, 10**13, "21.5M"),
            "elements that one sample keeps alive at the peak (printed by `vramcast profile` and `vramcast catalog`)",
            "21.5M", _SUMMARY),
        Key("model", words("a name such as timm/resnet50"), "a model known by name", "timm/resnet50", (Level.NAME,)),
        Key("profile", words("what `vramcast profile` printed"), "a layer profile of your own module", "v1:…",
            (Level.PROFILE,), MAX_PROFILE_LENGTH),
        Key("batch-size", count(1, 10**7, "32"), "samples in a step on each GPU", '"32"', _DESCRIBED, default="1"),
        Key("input-size", dimensions, "size of one sample", "3x224x224", _DESCRIBED),
        Key("sequence-length", count(1, 10**7, "512"), "tokens in one sample", '"512"', _DESCRIBED),
        Key("precision", one_of(Precision, _PRECISIONS), "number format of the run", "amp-bf16", _DESCRIBED,
            default="fp32"),
        Key("optimizer", one_of(Optimizer, _OPTIMIZERS), "optimizer of the run", "adamw", _DESCRIBED,
            default=_OPTIMIZER),
        Key("task", one_of(Kind, _KINDS), "what is run", "training", _DESCRIBED, default="training"),
        Key("gradient-checkpointing", flag, "activations are recomputed in the backward pass", '"true"', _DESCRIBED),
        Key("lora-rank", count(1, 10**5, "16"), "rank of LoRA adapters; the base is frozen", '"16"', _DESCRIBED),
        Key("quantization", one_of(Quantization), "format of frozen base weights", "nf4", _DESCRIBED),
        Key("zero-stage", count(0, 3, "2"), "ZeRO/FSDP sharding stage", '"2"', _DESCRIBED),
        Key("data-parallel-size", count(1, 10**5, "8"), "GPUs that states are sharded over", '"8"', _DESCRIBED),
    )
}  # fmt: skip

# What a forecast needs at each level. If several are complete the first counts: the user's own number above all.
ENOUGH: dict[Level, tuple[str, ...]] = {
    Level.GIVEN: ("gpu-memory",),
    Level.PROFILE: ("profile",),
    Level.NAME: ("model",),
    Level.SUMMARY: ("parameters", "activations", "batch-size"),
}

# Keys with the values that match; an empty tuple matches any value.
Condition = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Rule:
    """If `when` holds and `unless` does not, none of `forbids` may be present and all of `needs` must be."""

    when: Condition
    why: str
    forbids: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    unless: Condition = field(default_factory=dict)

    def broken(self, values: Mapping[str, Value], unreadable: Collection[str] = ()) -> list[str]:
        """The keys that break the rule. A key with an unreadable value is not missing."""
        if not _holds(self.when, values) or (self.unless and _holds(self.unless, values)):
            return []
        missing = [name for name in self.needs if name not in values and name not in unreadable]
        return [name for name in self.forbids if name in values] + (list(self.when)[:1] if missing else [])


def _holds(condition: Condition, values: Mapping[str, Value]) -> bool:
    return all(
        name in values and (not meant or str(values[name]) in meant)
        for name, meant in condition.items()
    )  # fmt: skip


RULES: tuple[Rule, ...] = (
    Rule({"input-size": ()}, f"contradicts {PREFIX}input-size: give the one that the model reads",
         forbids=("sequence-length",)),
    Rule({"task": ("inference",)}, f"contradicts {PREFIX}task: inference trains nothing",
         forbids=("optimizer", "lora-rank", "gradient-checkpointing")),
    Rule({"zero-stage": ("1", "2", "3")}, f"sharding needs {PREFIX}data-parallel-size to say over how many GPUs",
         needs=("data-parallel-size",)),
    Rule({"quantization": ("int8", "int4", "nf4")}, f"quantized weights are not trained: give {PREFIX}lora-rank too",
         needs=("lora-rank",), unless={"task": ("inference",)}),
)  # fmt: skip


def assumed(level: Level, values: Mapping[str, Value]) -> dict[str, str]:
    """The defaults that a forecast assumes: those that are not given and break no rule."""
    return {
        key.name: key.default
        for key in KEYS.values()
        if key.default and level in key.levels and key.name not in values
        and not any(key.name in rule.broken({**values, key.name: key.default}) for rule in RULES)
    }  # fmt: skip


class Written(StrEnum):
    """Annotations that vramcast writes onto a pod together with its Binding."""

    FORECAST_MEMORY = PREFIX + "forecast-memory"
    RESERVED_MEMORY = PREFIX + "reserved-memory"
    FORECAST_UTILIZATION = PREFIX + "forecast-utilization"
    GPU_INDICES = PREFIX + "gpu-indices"
    MODEL_VERSION = PREFIX + "model-version"
    CALIBRATION = PREFIX + "calibration"
