"""The time of a training step on a GPU: the weighted parts of the step, times a factor that was learned.

What was never timed gets a wider range, or no time and the reason why. The arithmetic of a step is told wherever the
layers are known. Never raises: a missing time must not stop a pod.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from vramcast.errors import ArtifactUnusable, InvalidTask
from vramcast.forecast.catalog import builtin_artifact
from vramcast.forecast.description import Description
from vramcast.forecast.forecaster import described_network
from vramcast.forecast.onnx_session import open_session
from vramcast.forecast.recorded import is_recording
from vramcast.forecast.roofline import HALF
from vramcast.forecast.speed_artifact import OUTPUTS, SpeedArtifact, load_speed_artifact
from vramcast.forecast.speed_features import SpeedFeatures, describe_speed, with_shares
from vramcast.forecast.step_parts import weighted_seconds
from vramcast.forecast.warnings import warn
from vramcast.forecast.work import step_flops
from vramcast.hardware.peaks import PEAKS
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import Kernels, Level, Offload, Precision, Quantization

_CACHE_SIZE = 4096
_FEW_BITS = frozenset({Precision.FP8, Precision.INT8})


@dataclass(frozen=True, slots=True)
class StepTime:
    """Of one update on one GPU. Nine of ten runs are meant to be between `low_seconds` and `high_seconds`."""

    flops: float | None = None
    seconds: float | None = None
    low_seconds: float | None = None
    high_seconds: float | None = None
    samples_per_second: float | None = None  # on one GPU
    notes: tuple[str, ...] = ()  # why the range is wider
    missing: str = ""  # why no time is told


UNTIMED = StepTime()


class StepTimer:
    """Loaded when it is first asked. Answers are cached by task and product."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cache: dict[tuple[Task, Product], StepTime] = {}
        self._lock = threading.Lock()
        self._loaded: tuple[SpeedArtifact, Any] | None = None
        self._unusable = ""

    def cached(self, task: Task, product: Product) -> StepTime | None:
        """What `forecast` would answer at once; None: it takes a millisecond or two."""
        return self._cache.get((_same(task), product))

    def forecast(self, task: Task, product: Product) -> StepTime:
        key = (_same(task), product)
        known = self._cache.get(key)
        if known is None:
            known = self._forecast(*key)
            with self._lock:
                if len(self._cache) >= _CACHE_SIZE:
                    del self._cache[next(iter(self._cache))]
                self._cache[key] = known
        return known

    def _forecast(self, task: Task, product: Product) -> StepTime:
        network = _layers(task)
        if isinstance(network, str):
            return StepTime(missing=network)
        flops = step_flops(network, task)
        peaks = PEAKS.get(product)
        if flops is None:
            return StepTime(missing="its layers have no shapes: run `vramcast profile` again")
        if peaks is None:
            return StepTime(flops, missing=f"the peak arithmetic of {product} is not known")
        if untimed := _untimed(task):
            return StepTime(flops, missing=f"no run with {', '.join(untimed)} was timed")
        described = describe_speed(network, task, peaks)
        if described is None or not self._load() or self._loaded is None:
            return StepTime(flops, missing=self._unusable or "its layers do not tell how long they take")
        artifact, session = self._loaded
        notes = tuple(_unfamiliar(artifact, network, task, product))
        return replace(interpret(artifact, session, described, task, len(notes)), flops=flops, notes=notes)

    def _load(self) -> bool:
        with self._lock:
            if self._loaded is None and not self._unusable:
                try:
                    artifact = load_speed_artifact(self._directory)
                    self._loaded = artifact, open_session(artifact.model)
                except ArtifactUnusable as error:
                    self._unusable = str(error)
                    warn("step times are not forecast", error=self._unusable)
            return self._loaded is not None


@lru_cache(maxsize=1)
def builtin_step_timer() -> StepTimer:
    return StepTimer(builtin_artifact())


def _same(task: Task) -> Task:
    """What does not change the time of a step."""
    return replace(task, namespace="", assumptions=(), max_oom_risk=None, max_slowdown=None)


def _layers(task: Task) -> Description | str:
    """Or why there are none."""
    if task.level is Level.GIVEN:
        return "the task describes no network, only its memory"
    if is_recording(task.profile):
        return "a recording tells what a step holds, not how long its layers take"
    try:
        network = described_network(task).network
    except InvalidTask as error:
        return str(error)
    return network if network is not None else "totals do not tell the layers: name the model, or give its profile"


def _untimed(task: Task) -> list[str]:
    """Settings that change the time of a step by more than a guess could cover."""
    settings = {
        f"precision {task.precision}": task.precision in _FEW_BITS,
        f"ZeRO stage {task.zero_stage}": task.zero_stage > 0,
        "several GPUs that wait for each other": task.data_parallel_size > 1 and not task.zero_stage,
        "offloading": task.offload is not Offload.NONE,
        f"{task.kernels} kernels": task.kernels is not Kernels.NONE,
    }
    return [name for name, given in settings.items() if given]


def _unfamiliar(artifact: SpeedArtifact, network: Description, task: Task, product: Product) -> list[str]:
    traits = {
        f"no run on {product} was timed": product not in artifact.products,
        f"hardly any run in {task.precision} was timed": task.precision not in HALF,
        "no network that reads tokens was timed": network.sequence_length is not None,
        "attention and functional operations were not counted": network.work is None,
        "no run with LoRA was timed": task.lora_rank is not None,
        f"no run with quantization {task.quantization} was timed": task.quantization is not Quantization.NONE,
        "no run with gradient checkpointing was timed": task.gradient_checkpointing,
    }
    return [name for name, given in traits.items() if given]


def interpret(artifact: SpeedArtifact, session: Any, described: SpeedFeatures, task: Task, traits: int = 0) -> StepTime:
    """`traits`: that no timed run had, each of which widens the range."""
    weights = artifact.weights[described.cell]
    facts = with_shares(described.plain_facts, described.usual_parts, weights)
    quantiles = session.run(
        OUTPUTS[:1], {"facts": facts[None], "tokens": described.tokens[None], "kinds": described.kinds[None]}
    )[0][0]
    low, median, high = (float(value) for value in np.asarray(quantiles))
    below, above = ((abs(end - median)) * artifact.range_factor + traits * artifact.margin for end in (low, high))
    prior = float(weighted_seconds(described.parts, weights, described.repeats))
    seconds = prior * math.exp(median)
    return StepTime(
        seconds=seconds,
        low_seconds=seconds * math.exp(-below),
        high_seconds=seconds * math.exp(above),
        samples_per_second=task.batch_size * task.gradient_accumulation / seconds,
    )
