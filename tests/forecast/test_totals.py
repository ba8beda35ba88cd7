"""No bound is silly: without recorded steps it ends at a multiple of what arithmetic says."""

from __future__ import annotations

import pytest

from vramcast.forecast.catalog import builtin_artifact
from vramcast.forecast.counters import Counter
from vramcast.forecast.forecast import Forecast, Part, Source
from vramcast.forecast.model import ModelForecaster, load_artifact
from vramcast.forecast.totals import bounded_totals
from vramcast.names import Product
from vramcast.task.quantity import GIB
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX, Level, Precision

A100 = Product("NVIDIA-A100-SXM4-80GB")
PARTS = (Part("weights", 12 * GIB, ""), Part("activations", 6 * GIB, ""), Part("CUDA context", GIB, ""),
         Part("learned correction", GIB, ""))  # fmt: skip
FULL = Task(Level.SUMMARY, parameters=1, activations=1)
CAST = Task(Level.SUMMARY, parameters=1, activations=1, precision=Precision.BF16)


def forecast(bound_gib: float, risk: float = 0.05) -> Forecast:
    return Forecast(A100, 20 * GIB, round(bound_gib * GIB), risk, Source.MODEL, "", PARTS)


@pytest.mark.parametrize(("risk", "most_gib"), [(0.05, 50), (0.01, 59), (0.001, 69)])
def test_a_job_of_20_gib_never_gets_200(risk: float, most_gib: float) -> None:
    assert bounded_totals(forecast(200, risk), CAST, layers=False).bound_bytes == round(most_gib * GIB)


def test_plain_training_may_have_workspaces_on_top() -> None:
    assert bounded_totals(forecast(200), FULL, layers=False).bound_bytes == 66 * GIB


def test_a_lower_bound_stays() -> None:
    assert bounded_totals(forecast(30), CAST, layers=False).bound_bytes == 30 * GIB


def test_tensors_are_told_without_context_and_what_was_learned_about_the_device() -> None:
    counted = bounded_totals(forecast(30), CAST, layers=False).counted(Counter.ALLOCATED)
    assert (counted.median_bytes, counted.bound_bytes) == (18 * GIB, round(1.45 * 18 * GIB))


@pytest.mark.parametrize(
    "described",
    [
        {"model": "torchvision/fasterrcnn_resnet50_fpn", "batch-size": "2"},
        {"parameters": "7B", "activations": "500M", "batch-size": "4", "precision": "bf16", "lora-rank": "16"},
        {"parameters": "2B", "activations": "20G", "batch-size": "1", "precision": "bf16", "lora-rank": "16",
         "gradient-checkpointing": "true"},
    ],
    ids=["a detector", "LoRA", "LoRA of a denoiser"],
)  # fmt: skip
def test_no_bound_of_the_shipped_artifact_is_silly_at_the_least_usual_risk(described: dict[str, str]) -> None:
    task = parse_task({PREFIX + name: text for name, text in {**described, "max-oom-risk": "0.01"}.items()})
    assert task is not None
    found = ModelForecaster(load_artifact(builtin_artifact()), 0.05).forecast(task, A100)
    assert found.bound_bytes <= 2.95 * found.median_bytes + 16 * GIB + 1
