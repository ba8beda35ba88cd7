"""The recipes of docs/recipes.md, recorded. `python -m tests.profiling.recipes` writes their figures into the page."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.docs.pages import REPOSITORY
from vramcast.forecast.forecast import Forecast
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.names import Product
from vramcast.profile.arguments import ProfileArguments
from vramcast.profile.commands import profile_target
from vramcast.task.quantity import GIB
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX

PAGE = REPOSITORY / "docs/recipes.md"
FOLDER = REPOSITORY / "examples/recipes"
A100 = Product("NVIDIA-A100-SXM4-40GB")
FORECASTER = PhysicsForecaster(0.05)
_FIGURES = re.compile(r"(?<=<!-- made: recipes -->\n).*?(?=<!-- /made -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is recorded, and what the pod adds to the profile."""

    name: str
    target: str
    settings: Mapping[str, str] = field(default_factory=dict)
    sequence_length: int | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)


RECIPES = (
    Recipe("plain training", "ddp:make"),
    Recipe("DPO", "dpo:make"),
    Recipe("GRPO", "grpo:make"),
    Recipe("reward model", "reward_model:make"),
    Recipe("gradient accumulation", "accumulation:make"),
    Recipe("DDP on four GPUs", "ddp:make", annotations={"data-parallel-size": "4"}),
    Recipe("CPU offload", "offload:make"),
    Recipe(
        "8-bit Adam, bf16", "adam8bit:build", {"precision": "bf16", "optimizer": "adam8bit", "batch-size": "4"}, 512
    ),
    Recipe("fused loss", "fused_loss:make"),
)


@contextmanager
def in_folder() -> Iterator[None]:
    """The recipes import each other, as they do where a user runs the command."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield
    finally:
        sys.path.remove(str(FOLDER))


def recorded(recipe: Recipe) -> dict[str, str]:
    """The pod's annotations."""
    arguments = ProfileArguments(
        recipe.target, sequence_length=recipe.sequence_length, settings=dict(recipe.settings), gpu=A100
    )
    with in_folder():
        done = profile_target(arguments, FORECASTER)
    return {**done.annotations, **{PREFIX + name: value for name, value in recipe.annotations.items()}}


def forecast(annotations: Mapping[str, str]) -> Forecast:
    task = parse_task(annotations)
    assert task is not None
    return FORECASTER.forecast(task, A100)


def row(recipe: Recipe) -> str:
    annotations = recorded(recipe)
    found = forecast(annotations)
    sizes = {part.name: part.size_bytes for part in found.parts}
    weights = sizes.get("weights", 0) + sizes.get("frozen weights", 0)
    saved = sizes.get("saved activations", 0) + sizes.get("temporaries", 0)
    columns = (weights, sizes.get("gradients", 0), sizes.get("optimizer states", 0), saved, found.median_bytes,
               found.bound_bytes)  # fmt: skip
    shown = " | ".join(f"{size / GIB:.2f}" for size in columns)
    return f"| {recipe.name} | {shown} | {len(annotations[PREFIX + 'profile']) / 1000:.1f} kB |"


def table() -> str:
    rows = "\n".join(row(recipe) for recipe in RECIPES)
    return (
        "| recipe | weights | gradients | optimizer states | activations and temporaries | median | bound | profile |\n"
        f"|---|---|---|---|---|---|---|---|\n{rows}\n"
    )


def written_table() -> str:
    found = _FIGURES.search(PAGE.read_text())
    assert found is not None
    return found.group()


if __name__ == "__main__":
    made = table()
    PAGE.write_text(_FIGURES.sub(lambda _: made, PAGE.read_text()))
