"""What recordings taught about totals: where it answers, what its figures keep to, and what happens without it."""

from __future__ import annotations

import json
import math
import shutil
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.forecast.catalog import builtin_artifact
from vramcast.forecast.forecast import Forecast, Source
from vramcast.forecast.forecaster import CachingForecaster
from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.forecast.totals import RECORDINGS_PART
from vramcast.forecast.totals_features import RuledTotals
from vramcast.forecast.totals_model import MANIFEST, MODEL, TotalsModel, load_totals, memory
from vramcast.hardware.utilization import FORECAST_COUNTERS
from vramcast.names import Product
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX

A100 = Product("NVIDIA-A100-SXM4-80GB")
LLAMA = {
    "architecture": "transformer", "parameters": "8000000000", "layers": "350", "activations": "8000000000",
    "sequence-length": "2048", "precision": "bf16",
}  # fmt: skip
RESNET = {"architecture": "cnn", "parameters": "25600000", "layers": "160", "activations": "21500000",
          "precision": "amp-bf16"}  # fmt: skip
LORA = {"lora-rank": "16", "gradient-checkpointing": "true"}
KINDS = [
    RESNET, LLAMA, {**LLAMA, **LORA}, {**LLAMA, **LORA, "quantization": "nf4"},
    {**LLAMA, "zero-stage": "3", "data-parallel-size": "8"}, {**LLAMA, "task": "inference"},
    {"parameters": "8000000000", "activations": "8000000000", "precision": "bf16"},
    {"model": "hf/stablelm-base-alpha-7b", "precision": "amp-fp16", "attention": "eager"},
]  # fmt: skip


@lru_cache
def shipped() -> CachingForecaster:
    return choose_forecaster(BUILTIN, 0.05, physics_if_unusable=False)


def task(described: dict[str, str]) -> Task:
    found = parse_task({PREFIX + name: text for name, text in {"batch-size": "4", **described}.items()})
    assert found is not None
    return found


def forecast(described: dict[str, str]) -> Forecast:
    return shipped().forecast(task(described), A100)


def is_learned(found: Forecast) -> bool:
    return found.parts[-1].name == RECORDINGS_PART


def test_recordings_teach_memory_and_how_busy_a_gpu_is_comes_from_measured_runs() -> None:
    found = forecast({**LLAMA, **LORA})
    assert is_learned(found)
    assert found.model_version == shipped().version
    assert all(0.0 < (found.utilization.of(counter) or 0.0) <= 1.0 for counter in FORECAST_COUNTERS)


@pytest.mark.parametrize("described", KINDS, ids=lambda kind: " ".join(sorted(set(kind) - set(LLAMA))))
def test_kinds_of_run_that_were_recorded_are_answered_by_what_was_learned(described: dict[str, str]) -> None:
    found = forecast(described)
    assert (found.source, is_learned(found)) == (Source.MODEL, True)
    assert sum(part.size_bytes for part in found.parts) == found.median_bytes <= found.bound_bytes
    assert found.allocated is not None
    assert 0 < found.allocated.median_bytes <= found.median_bytes - found.context_bytes
    assert found.allocated.median_bytes <= found.allocated.bound_bytes <= found.bound_bytes


@pytest.mark.parametrize(
    "described",
    [
        {**RESNET, "architecture": "rnn"}, {**RESNET, "lora-rank": "8"}, {**RESNET, "precision": "int8"},
        {**RESNET, "precision": "fp32"}, {**RESNET, "gradient-checkpointing": "true"},
    ],
)  # fmt: skip
def test_kinds_of_run_that_nobody_recorded_are_left_to_the_rules(described: dict[str, str]) -> None:
    assert not is_learned(forecast(described))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 200), st.integers(1, 60))
def test_more_samples_never_need_less(described: dict[str, str], batch: int, more: int) -> None:
    less, larger = (forecast({**described, "batch-size": str(size)}) for size in (batch, batch + more))
    assert less.median_bytes <= larger.median_bytes
    assert less.bound_bytes <= larger.bound_bytes


@pytest.mark.parametrize("described", [{"precision": "fp16", "zero-stage": "2", "data-parallel-size": "4"},
                                       {"precision": "amp-bf16", "gradient-checkpointing": "true"}])  # fmt: skip
def test_longer_samples_never_need_less(described: dict[str, str]) -> None:
    lengths = (64, 100, 128, 200, 256, 400, 512, 700, 1024, 1500, 2048)
    named = {"model": "hf/stablelm-base-alpha-7b", "attention": "eager", **described}  # nobody recorded that
    runs = [forecast({**named, "sequence-length": str(length)}) for length in lengths]
    assert all(before.bound_bytes <= after.bound_bytes for before, after in pairwise(runs))


@pytest.mark.parametrize("described", KINDS, ids=lambda kind: " ".join(sorted(set(kind) - set(LLAMA))))
def test_less_risk_never_needs_less(described: dict[str, str]) -> None:
    bounds = [forecast({**described, "max-oom-risk": str(risk)}).bound_bytes for risk in (0.2, 0.05, 0.01, 0.001)]
    assert bounds == sorted(bounds)


def test_settings_that_only_recordings_count_are_not_said_to_be_in_vain() -> None:
    found = forecast({**LLAMA, "kernels": "liger", "offload": "optimizer"})
    assert "kernels liger is not counted" not in found.assumptions
    assert "offload optimizer is not counted" in found.assumptions


@given(
    st.lists(st.floats(-9, 9), min_size=3, max_size=3), st.floats(1, 1e12), st.floats(1, 1e9), st.floats(1, 1e7),
    st.floats(1, 4),
)  # fmt: skip
def test_whatever_was_learned_memory_rises_with_the_units(
    factors: list[float], held: float, unit: float, units: float, more: float
) -> None:
    learned = np.array(factors)
    assert memory(learned, RuledTotals(held, unit, units)) <= memory(learned, RuledTotals(held, unit, more * units))


def test_an_artifact_without_it_leaves_everything_to_the_rules(tmp_path: Path) -> None:
    assert load_totals(tmp_path) is None
    assert TotalsModel(tmp_path).learned(task(RESNET), task(RESNET), None) is None


@pytest.mark.parametrize("damage", ["other facts", "other model", "no json"])
def test_a_damaged_one_is_told_once_and_not_used(tmp_path: Path, damage: str) -> None:
    for name in (MODEL, MANIFEST):
        shutil.copy(builtin_artifact() / name, tmp_path / name)
    if damage == "other model":
        (tmp_path / MODEL).write_bytes(b"not a model")
    elif damage == "no json":
        (tmp_path / MANIFEST).write_text("{")
    else:
        manifest = json.loads((tmp_path / MANIFEST).read_text()) | {"facts": 1}
        (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    assert load_totals(tmp_path) is None


def test_a_margin_is_stored_for_every_cell_and_rises_with_less_risk() -> None:
    artifact = load_totals(builtin_artifact())
    assert artifact is not None
    for cell in artifact.cells.values():
        margins = [cell.by_risk[risk] for risk in sorted(cell.by_risk, reverse=True)]
        assert margins == sorted(margins)
        assert all(math.isfinite(margin) for margin in margins)
