"""Draws networks from the catalog, settings for each, and points at which nobody recorded them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import exp, log

from vramcast.forecast.recording import ENDLESS, Recording
from vramcast.forecast.sizes import Point, Variable
from vramcast.profile.recording.settings import RunSettings
from vramcast.profile.sources import ModelSource
from vramcast.task.vocabulary import Precision

# Networks of each library. Diffusion models take minutes each.
SHARES = {"hf": 10, "timm": 10, "torchvision": 9, "diffusers": 1}
_MOST_SAMPLES = 64
_MOST_RANK = 64
_LORA = RunSettings(precision=Precision.BF16, lora_rank=16)
_OF_TEXT = (
    _LORA,
    RunSettings(precision=Precision.BF16, gradient_checkpointing=True, lora_rank=16),
    RunSettings(precision=Precision.BF16, gradient_checkpointing=True),
    RunSettings(precision=Precision.AMP_BF16),
)
_OF_IMAGES = (
    RunSettings(),
    RunSettings(precision=Precision.AMP_FP16),
    RunSettings(precision=Precision.BF16),
)


@dataclass(frozen=True, slots=True)
class Drawn:
    source: ModelSource
    settings: RunSettings

    def __str__(self) -> str:
        parts = [str(self.settings.precision)]
        if self.settings.lora_rank is not None:
            parts.append("LoRA")
        if self.settings.gradient_checkpointing:
            parts.append("checkpointing")
        return f"{self.source.name} ({', '.join(parts)})"


def draw_networks(sources: Iterable[ModelSource], seed: int) -> dict[str, Iterator[Drawn]]:
    """By library, all its networks in a random order: one that cannot be recorded is replaced by the next."""
    by_library: defaultdict[str, list[ModelSource]] = defaultdict(list)
    for source in sources:
        by_library[source.name.partition("/")[0]].append(source)
    return {library: _shuffled(by_library[library], seed) for library in SHARES}


def _shuffled(sources: list[ModelSource], seed: int) -> Iterator[Drawn]:
    for source in random.Random(seed).sample(sources, len(sources)):
        yield draw_settings(source, seed)


def draw_settings(source: ModelSource, seed: int) -> Drawn:
    chance = random.Random(f"{seed} {source.name}")
    return Drawn(source, chance.choice(_OF_TEXT if source.tokens else _OF_IMAGES))


def draw_points(recording: Recording, name: str, count: int, seed: int) -> list[Point]:
    """Spread evenly over the logarithms of what the recording answers."""
    chance = random.Random(f"{seed} {name}")
    ranges = {variable: _range(recording, variable) for variable in recording.variables}
    return [
        {variable: round(exp(chance.uniform(log(low), log(high)))) for variable, (low, high) in ranges.items()}
        for _ in range(count)
    ]


def _range(recording: Recording, variable: Variable) -> tuple[int, int]:
    low, high = recording.limits(variable)
    if variable in ENDLESS:
        return 1, _MOST_SAMPLES if variable is Variable.BATCH else _MOST_RANK
    return low, high


def outside(recording: Recording, point: Point) -> Mapping[Variable, int]:
    """The point with a length or side beyond what the recording answers; else with no sample at all."""
    for variable in recording.variables:
        if variable not in ENDLESS:
            return {**point, variable: recording.limits(variable)[1] + 1}
    return {**point, Variable.BATCH: 0}
