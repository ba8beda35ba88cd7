"""A task: the deep-learning job that a pod's annotations describe."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, cast

from vramcast.errors import MAX_SHOWN, FieldError, InvalidTask
from vramcast.task.forms import Value
from vramcast.task.quantity import human_mib
from vramcast.task.vocabulary import (
    DEFAULT_ATTENTION,
    ENOUGH,
    INJECTED,
    KEYS,
    PREFIX,
    RULES,
    Allocator,
    Architecture,
    Attention,
    Cap,
    Kernels,
    Key,
    Kind,
    Length,
    Level,
    LoraTargets,
    Offload,
    Optimizer,
    Precision,
    Quantization,
    Written,
    assumed,
)

# Set by maintenance and takeovers; not part of a description.
REQUEUE = PREFIX + "requeue"
# A job may annotate its own pod with the peak that it measured, and with the fact that it ran out of GPU memory.
OBSERVED_MEMORY = PREFIX + "observed-memory"
OUT_OF_MEMORY = PREFIX + "out-of-memory"
DESCRIBES_NOTHING: tuple[str, ...] = (*Written, INJECTED, REQUEUE, OBSERVED_MEMORY, OUT_OF_MEMORY)
# Matches the name of an annotation that describes a task. A regular expression, because every annotation of every pod
# is checked.
describes = re.compile(f"{re.escape(PREFIX)}(?!({'|'.join(n.removeprefix(PREFIX) for n in DESCRIBES_NOTHING)})$)").match


@dataclass(frozen=True, slots=True)
class Task:
    """A validated description. `level` is the kind of forecast that it allows."""

    level: Level
    gpu_memory_mib: int | None = None
    share: bool = False
    gpus: int | None = None
    cap: Cap | None = None  # None: not said
    max_oom_risk: float | None = None
    max_slowdown: float | None = None  # times as long as alone
    kind: Kind = Kind.TRAINING
    architecture: Architecture | None = None
    parameters: int | None = None
    layers: int | None = None
    activations: int | None = None
    model: str | None = None
    profile: str | None = None
    batch_size: int = 1
    input_size: tuple[int, ...] | None = None
    sequence_length: int | None = None
    length: Length = Length.FIXED
    precision: Precision = Precision.FP32
    optimizer: Optimizer = Optimizer.ADAMW
    gradient_checkpointing: bool = False
    gradient_accumulation: int = 1
    attention: Attention | None = None  # None: not said
    kernels: Kernels = Kernels.NONE
    lora_rank: int | None = None
    lora_targets: str = LoraTargets.ALL_LINEAR  # a word, or names of modules separated by commas
    quantization: Quantization = Quantization.NONE
    upcast: bool | None = None  # None: not said
    zero_stage: int = 0
    data_parallel_size: int = 1
    master_weights: bool = True
    offload: Offload = Offload.NONE
    allocator: Allocator = Allocator.DEFAULT
    framework: str = ""  # libraries separated by commas, with or without ==version
    namespace: str = ""  # of the pod: whose former runs count
    assumptions: tuple[str, ...] = ()

    @property
    def upcasts(self) -> bool:
        """Whether what is not quantized is in fp32. Shards must be of one number format, so FSDP has it in 16 bits."""
        can = self.quantization in {Quantization.NF4, Quantization.INT8} and self.kind is not Kind.INFERENCE
        return can and (self.zero_stage == 0 if self.upcast is None else self.upcast)


# Annotations whose Task field has another name.
FIELD_NAMES = {"gpu-memory": "gpu_memory_mib", "task": "kind"}


def parse_task(annotations: Mapping[str, str]) -> Task | None:
    """The task that the annotations describe, or None if they describe none. Raises InvalidTask with every mistake."""
    described = tuple(item for item in annotations.items() if describes(item[0]))
    return parse_described(described) if described else None


def parse_described(described: tuple[tuple[str, str], ...]) -> Task:
    """From the annotations that describe a task, names and texts. Raises InvalidTask."""
    errors: list[FieldError] = []
    values: dict[str, Value] = {}
    for name, text in described:
        key = KEYS.get(name.removeprefix(PREFIX))
        try:
            if key is None:
                raise ValueError(unknown_key(name, suggest=len(errors) < MAX_SHOWN))
            values[key.name] = _parse_value(key, text)
        except ValueError as error:
            errors.append(FieldError(name, text, str(error)))
    level = _level(values)
    errors += _contradictions(values, [error.field.removeprefix(PREFIX) for error in errors])
    if level is None and not errors:
        errors.append(_nothing_to_forecast_from(values))
    if errors or level is None:
        raise InvalidTask(errors)
    taken = assumed(level, values)
    notes = (*(f"{name} {text}" for name, text in taken.items()), *_outranked(level, values))
    values = {**{name: KEYS[name].parse(default) for name, default in taken.items()}, **values}
    return Task(level=level, assumptions=notes, **_fields(values))


def _parse_value(key: Key, text: str) -> Value:
    if len(text) > key.max_length:
        raise ValueError(f"expected at most {key.max_length} characters, got {len(text)}")
    return key.parse(text)


def unknown_key(name: str, *, suggest: bool = True) -> str:
    """`suggest`: finding the nearest key is slow, and nobody reads past the first few."""
    if not suggest:
        return "no annotation has this name"
    near = get_close_matches(name.removeprefix(PREFIX).replace("_", "-").lower(), KEYS, n=1, cutoff=0.6)
    known = f"did you mean {PREFIX}{near[0]}?" if near else f"the known ones are {', '.join(KEYS)}"
    return f"no annotation has this name; {known}"


def _level(values: Mapping[str, Value]) -> Level | None:
    """The level that the forecast uses. The user's own number overrides every description."""
    return next((level for level, names in ENOUGH.items() if values.keys() >= set(names)), None)


def _outranked(level: Level, values: Mapping[str, Value]) -> Iterator[str]:
    """Keys of another level. With the user's own number, no description counts, and nobody expects it to."""
    others = [name for name in values if KEYS[name].levels and level not in KEYS[name].levels]
    if others and level is not Level.GIVEN:
        yield f"{ENOUGH[level][0]} counts, not {', '.join(others)}"


def _nothing_to_forecast_from(values: Mapping[str, Value]) -> FieldError:
    missing = [name for name in ENOUGH[Level.SUMMARY] if name not in values]
    if "parameters" in values or "activations" in values:
        return FieldError(PREFIX + missing[0], "", f"a summary also needs {', '.join(missing)}")
    given = ", ".join(values)
    return FieldError(
        PREFIX + "gpu-memory", "", f"{given} alone is not enough for a forecast: give gpu-memory, "
        "or parameters + activations + batch-size, or model, or profile",
    )  # fmt: skip


def _contradictions(values: Mapping[str, Value], unreadable: list[str]) -> list[FieldError]:
    return [
        FieldError(PREFIX + name, str(values[name]), rule.why)
        for rule in RULES
        for name in rule.broken(values, unreadable)
    ]  # fmt: skip


def _fields(values: Mapping[str, Value]) -> dict[str, Any]:
    return {FIELD_NAMES.get(name, name.replace("-", "_")): value for name, value in values.items()}


def describe(task: Task) -> str:
    """One line for logs and tables."""
    if task.level is Level.GIVEN:
        return f"gpu-memory {human_mib(cast(int, task.gpu_memory_mib))}"
    what = task.model or (task.architecture or "network")
    return f"{what}, batch {task.batch_size}, {task.precision}, {task.kind}"


# Whatever they are, the task runs the same thing.
_NOT_WHAT_RUNS = frozenset({"share", "gpus", "cap", "max_oom_risk", "max_slowdown", "namespace", "assumptions"})
_DEFAULTS = {field.name: field.default for field in fields(Task) if field.name not in _NOT_WHAT_RUNS}
_USUAL = {"attention": DEFAULT_ATTENTION, "upcast": True}  # where the field's default means that nothing was said


def task_fingerprint(task: Task) -> str:
    """The same for two pods that run the same thing, however they are placed and whatever risk they accept.

    Learned state is keyed by it. Fields with their default are left out, so that a field which a later version adds
    changes no fingerprint.
    """
    return _fingerprint(task, frozenset())


def network_fingerprint(task: Task) -> str:
    """The same for runs that differ only in the sizes of RunPoint."""
    return _fingerprint(task, _SIZES)


@lru_cache(maxsize=4096)  # a job's pods are described alike, and every run asks for it several times
def _fingerprint(task: Task, left_out: frozenset[str]) -> str:
    told = {name: getattr(task, name) for name in _DEFAULTS if name not in left_out}
    what = [f"{name}={value}" for name, value in told.items() if value not in (_DEFAULTS[name], _USUAL.get(name))]
    return hashlib.sha256("\n".join(what).encode()).hexdigest()[:16]


_SIZES = frozenset({"batch_size", "sequence_length", "input_size"})


# Namespace, owner and fingerprint: the same task, run again by the same owner.
TaskKey = tuple[str, str, str]


def task_key(namespace: str, name: str, owner: str, fingerprint: str) -> TaskKey:
    """`owner` is what made the pod, such as Job/train-7. A bare pod is its own owner."""
    return namespace, owner or f"Pod/{name}", fingerprint
