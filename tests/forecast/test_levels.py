"""One task, told in three ways: by name, by its profile, by its summary."""

from __future__ import annotations

import random
from functools import lru_cache
from statistics import median

import pytest

from vramcast.core.forecast import Forecast
from vramcast.core.names import Product
from vramcast.core.task import parse_task
from vramcast.core.vocabulary import PREFIX
from vramcast.forecast.catalog import Line, builtin_catalog
from vramcast.forecast.description import parse_profile
from vramcast.forecast.forecaster import RememberingForecaster
from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.forecast.profiles import encode_profile
from vramcast.forecast.summary import summarize

A100 = Product("NVIDIA-A100-SXM4-40GB")
MODELS = 200
# Families that a summary has been trained for; a network on its own side of them is tested by name and profile.
FAMILIES = ("cnn", "transformer")


@lru_cache
def forecaster() -> RememberingForecaster:
    return choose_forecaster(BUILTIN, 0.05, physics_if_unusable=False)


def drawn() -> list[Line]:
    known = [line for line in builtin_catalog().lines() if line.parameters < 1_000_000_000 and line.family in FAMILIES]
    return random.Random(5).sample(known, MODELS)


def said(**settings: object) -> Forecast:
    task = parse_task({PREFIX + name.replace("_", "-"): str(value) for name, value in settings.items()})
    assert task is not None
    return forecaster().forecast(task, A100)


@lru_cache
def levels(name: str) -> tuple[Forecast, Forecast, Forecast]:
    catalog = builtin_catalog()
    line = catalog.find(name)
    assert line is not None
    profile = catalog.profile(line, None, None)
    summary = summarize(parse_profile(profile))
    run = {"batch_size": 16, "optimizer": "adamw", "precision": "fp32"}
    totals = {
        "architecture": summary.architecture, "parameters": summary.parameters, "layers": summary.layers,
        "activations": summary.activations,
    }  # fmt: skip
    return said(model=name, **run), said(profile=encode_profile(profile), **run), said(**totals, **run)


def test_a_name_is_the_profile_behind_it() -> None:
    for line in drawn():
        named, profiled, _ = levels(line.name)
        assert named.median_bytes == pytest.approx(profiled.median_bytes, rel=0.01), line.name
        assert named.bound_bytes == pytest.approx(profiled.bound_bytes, rel=0.01), line.name


def test_a_summary_is_near_its_profile_and_mostly_wider() -> None:
    """Not of every model: layers can show a risk that a summary hides (docs/forecast.md, "Measured")."""
    bounds, widths = [], []
    for line in drawn():
        _, profiled, totals = levels(line.name)
        bounds.append(totals.bound_bytes / profiled.bound_bytes)
        widths.append(totals.bound_bytes / totals.median_bytes / (profiled.bound_bytes / profiled.median_bytes))
    assert sum(abs(ratio - 1) <= 0.25 for ratio in bounds) >= 0.9 * MODELS
    assert sum(ratio > 1 for ratio in widths) >= 0.75 * MODELS
    assert median(bounds) == pytest.approx(1.05, abs=0.05)
