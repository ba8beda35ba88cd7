"""One task described in three ways: by name, by profile, by summary."""

from __future__ import annotations

import random
from functools import lru_cache
from statistics import median
from typing import Any

import pytest

from vramcast.forecast.catalog import Line, builtin_catalog
from vramcast.forecast.description import encode_profile, parse_profile
from vramcast.forecast.forecast import Forecast
from vramcast.forecast.forecaster import CachingForecaster
from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.forecast.summary import summarize
from vramcast.names import Product
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX

A100 = Product("NVIDIA-A100-SXM4-40GB")
MODELS = 200
RISK = 0.05
RUN = {"batch-size": "16", "optimizer": "adamw", "precision": "fp32"}
# The families that summaries were trained on.
FAMILIES = ("cnn", "transformer")


@lru_cache
def forecaster() -> CachingForecaster:
    return choose_forecaster(BUILTIN, RISK, physics_if_unusable=False)


def drawn() -> list[Line]:
    known = [line for line in builtin_catalog().lines() if line.parameters < 1_000_000_000 and line.family in FAMILIES]
    return random.Random(5).sample(known, MODELS)


def make_task(settings: dict[str, str]) -> Task:
    task = parse_task({PREFIX + name: text for name, text in (settings | RUN).items()})
    assert task is not None
    return task


def forecast(settings: dict[str, str]) -> Forecast:
    return forecaster().forecast(make_task(settings), A100)


@lru_cache
def levels(name: str) -> tuple[Forecast, Forecast, Forecast]:
    catalog = builtin_catalog()
    line = catalog.find(name)
    assert line is not None
    profile = catalog.profile(line, None, None)
    return forecast({"model": name}), forecast({"profile": encode_profile(profile)}), forecast(totals(profile))


def totals(profile: dict[str, Any]) -> dict[str, str]:
    summary = summarize(parse_profile(profile))
    return {
        "architecture": summary.architecture, "parameters": str(summary.parameters), "layers": str(summary.layers),
        "activations": str(summary.activations),
    }  # fmt: skip


def test_a_name_has_the_forecast_of_its_profile() -> None:
    for line in drawn():
        named, profiled, _ = levels(line.name)
        assert named.median_bytes == pytest.approx(profiled.median_bytes, rel=0.01), line.name
        assert named.bound_bytes == pytest.approx(profiled.bound_bytes, rel=0.01), line.name


def test_a_known_networks_summary_is_close_to_its_profile_and_wider() -> None:
    for line in drawn():
        _, profiled, summed = levels(line.name)
        assert profiled.bound_bytes < summed.bound_bytes <= 1.25 * profiled.bound_bytes, line.name
        wide, narrow = (one.bound_bytes / one.median_bytes for one in (summed, profiled))
        assert wide > narrow, line.name


def test_an_unknown_networks_summary_is_mostly_close_and_mostly_wider() -> None:
    """Not always: layers can show a risk that a summary hides (docs/forecast.md, "Measured")."""
    bounds, widths = [], []
    for line in drawn():
        _, profiled, _ = levels(line.name)
        summed = unmatched(line)
        bounds.append(summed.bound_bytes / profiled.bound_bytes)
        widths.append(summed.bound_bytes / summed.median_bytes / (profiled.bound_bytes / profiled.median_bytes))
    assert sum(abs(ratio - 1) <= 0.25 for ratio in bounds) >= 0.85 * MODELS
    assert sum(ratio > 1 for ratio in widths) >= 2 * MODELS / 3
    assert median(bounds) == pytest.approx(1.05, abs=0.05)


def unmatched(line: Line) -> Forecast:
    """The summary's forecast without a catalog match."""
    task = make_task(totals(builtin_catalog().profile(line, None, None)))
    return forecaster().forecast_network(None, task, A100, RISK)
