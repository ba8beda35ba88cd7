"""Makes the recording of a recipe, and keeps it in the user's cache. Needs torch."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from bench.recordings.cases import Recipe
from bench.recordings.language_networks import blocks_of
from bench.recordings.networks import built

import vramcast.profile.recording
from vramcast.forecast.tape import Mark, Moment, Tape
from vramcast.profile.recording.record import record_model
from vramcast.profile.recording.settings import RunSettings
from vramcast.profile.stretch import NotAlike, stretch
from vramcast.task.vocabulary import Attention, Kernels, Precision, Quantization


def settings_of(recipe: Recipe) -> RunSettings:
    mixed = recipe.autocast and recipe.weights == "fp32"
    return RunSettings(
        precision=Precision(f"amp-{recipe.autocast}" if mixed else recipe.weights),
        autocast=bool(recipe.autocast) and not mixed,
        attention=Attention(recipe.attention),
        gradient_checkpointing=bool(recipe.checkpointing),
        reentrant=recipe.checkpointing == "reentrant",
        lora_rank=recipe.lora_rank or None,
        lora_targets=recipe.lora_targets,
        lora_dropout=recipe.lora_dropout,
        quantization=Quantization(recipe.quantization),
        upcast=recipe.upcast,
        kernels=Kernels(recipe.kernels),
        fused_activations=recipe.fused_activations,
        repeated_heads=recipe.repeated_heads,
    )


# Raise this when `networks.py` builds a network or its batch otherwise.
_NETWORKS = 3


def code_fingerprint() -> str:
    """Changes with the parts of the recorder that are in use, so that an old recording is never taken for a new one."""
    recorder = vramcast.profile.recording.__name__
    files = (module.__file__ for name, module in sys.modules.items() if name.startswith(recorder))
    code = b"".join(Path(file).read_bytes() for file in sorted(filter(None, files)))
    return hashlib.sha256(code + str(_NETWORKS).encode()).hexdigest()[:12]


def cache_folder() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "vramcast" / "recordings" / code_fingerprint()


def cached_at(folder: Path, recipe: Recipe) -> Path:
    text = json.dumps(asdict(recipe), sort_keys=True)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.npz"


def save_tape(tape: Tape, path: Path) -> None:
    marks = np.array([(mark.event, mark.moment, mark.unit) for mark in tape.marks], np.int64).reshape(-1, 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part.npz")
    np.savez_compressed(
        unfinished, sizes=tape.sizes, roles=tape.roles, units=tape.units, events=tape.events, marks=marks
    )
    unfinished.replace(path)


def load_tape(path: Path) -> Tape:
    with np.load(path) as stored:
        marks = tuple(Mark(int(event), Moment(int(moment)), int(unit)) for event, moment, unit in stored["marks"])
        return Tape(stored["sizes"], stored["roles"], stored["units"], stored["events"], marks)


def versions() -> str:
    names = ("torch", "transformers", "timm", "torchvision", "diffusers")
    return ", ".join(f"{name} {version(name)}" for name in names)


def record(recipe: Recipe) -> Tape:
    blocks = blocks_of(recipe)
    if not blocks:
        return _recorded(recipe)
    try:
        return stretch(_recorded(recipe, whole=False), blocks)
    except NotAlike:
        return _recorded(recipe)


def _recorded(recipe: Recipe, *, whole: bool = True) -> Tape:
    build, batch_of = built(recipe, whole=whole)
    detects = recipe.variant == "frozen stages"  # detection looks at values
    with torch.backends.cudnn.flags(benchmark=recipe.autotuned):
        return record_model(build, batch_of, settings_of(recipe), device="cpu" if detects else "meta")


def record_into(task: tuple[Recipe, Path]) -> tuple[Recipe, str]:
    """Runs in a process of its own. Returns why there is no recording, or nothing."""
    recipe, path = task
    try:
        save_tape(record(recipe), path)
    except Exception as error:
        return recipe, f"{type(error).__name__}: {error}"
    return recipe, ""
