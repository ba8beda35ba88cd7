"""A summary with the numbers of a catalog model gets that model's layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.forecast.test_levels import A100, RISK, forecast, forecaster, make_task, totals
from vramcast.forecast import catalog as catalogs
from vramcast.forecast import forecaster as forecasters
from vramcast.forecast.catalog import CatalogUnusable, Line, builtin_catalog
from vramcast.forecast.description import encode_profile
from vramcast.forecast.summary import MATCH_MARGIN, catalog_match, layers_of

RESNET = "timm/resnet50"


def summary(**changes: object) -> dict[str, str]:
    line = builtin_catalog().find(RESNET)
    assert line is not None
    settings = totals(builtin_catalog().profile(line, None, None)) | changes
    return {name: str(value) for name, value in settings.items() if value is not None}


def scaled(name: str, ratio: float) -> dict[str, str]:
    return summary(**{name: round(int(summary()[name]) * ratio)})


def matched(settings: dict[str, str]) -> Line | None:
    return catalog_match(builtin_catalog().lines(), make_task(settings))


def test_a_matching_summary_has_the_forecast_of_the_name_with_a_wider_bound() -> None:
    summed, named = forecast(summary()), forecast({"model": RESNET})
    assert summed.median_bytes == named.median_bytes
    assert summed.bound_bytes == pytest.approx(MATCH_MARGIN * named.bound_bytes, rel=1e-6)
    assert any(RESNET in assumption for assumption in summed.assumptions)


@pytest.mark.parametrize(
    "settings",
    [
        summary(architecture=None),
        scaled("activations", 1.004),
        scaled("activations", 0.996),
        scaled("parameters", 0.92),  # ten classes instead of a thousand
        scaled("parameters", 1.09),
    ],
)
def test_rounded_figures_and_another_head_still_match(settings: dict[str, str]) -> None:
    line = matched(settings)
    assert line is not None
    assert line.name in {RESNET, "torchvision/resnet50", "timm/resnet50_gn"}


@pytest.mark.parametrize(
    "settings",
    [
        summary(layers=None),
        summary(architecture="transformer"),
        scaled("layers", 1.02),
        scaled("activations", 1.01),
        scaled("activations", 4.0),  # another image size
        scaled("parameters", 0.85),
        scaled("parameters", 1.15),
    ],
)
def test_other_numbers_do_not_match(settings: dict[str, str]) -> None:
    line = matched(settings)
    assert line is None or line.name != RESNET


def test_the_summarys_own_parameter_count_is_used() -> None:
    fewer, known = forecast(scaled("parameters", 0.92)), forecast(summary())
    weights = {part.name: part.size_bytes for part in fewer.parts}["weights"]
    assert weights == pytest.approx(4 * 0.92 * int(summary()["parameters"]), rel=0.01)
    assert fewer.median_bytes < known.median_bytes


def test_a_wrong_match_hardly_ever_costs_more_than_the_margin() -> None:
    """Looks up each model by its summary in a catalog without that model."""
    catalog = builtin_catalog()
    costs = []
    for line in catalog.lines():
        others = [other for other in catalog.with_layers(line.layers) if other is not line]
        if not any(near(line, other) for other in others):
            continue
        profile = catalog.profile(line, None, None)
        task = make_task(totals(profile))
        taken = catalog_match(others, task)
        if taken is not None:
            instead = forecaster().forecast_network(layers_of(catalog, taken, task), task, A100, RISK)
            own = forecast({"profile": encode_profile(profile)})
            costs.append(own.bound_bytes / instead.bound_bytes)
    assert len(costs) > 100
    assert np.mean(np.array(costs) > MATCH_MARGIN) <= 0.01
    assert max(costs) < 1.2  # eca_vovnet39b, taken for ese_vovnet39b


def near(one: Line, other: Line) -> bool:
    """A cheap filter, to save time."""
    return abs(one.activations / other.activations - 1) < 0.02


def test_without_a_catalog_a_summary_is_a_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(summary())
    assert forecasters.described_network(task).network is not None

    def missing() -> catalogs.Catalog:
        raise CatalogUnusable(f"no catalog at {Path('nowhere')}")

    monkeypatch.setattr(forecasters, "builtin_catalog", missing)
    assert forecasters.described_network(task).network is None


def test_products_share_one_description() -> None:
    task = make_task(scaled("parameters", 0.92))
    first, second = (forecasters.described_network(task).network for _ in range(2))
    assert first is second
