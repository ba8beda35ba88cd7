"""Eager attention writes a score for every pair of tokens and keeps it for the backward pass."""

from __future__ import annotations

import pytest

from vramcast.forecast.catalog import builtin_catalog
from vramcast.forecast.forecast import Forecast, Source
from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.forecast.recordings import builtin_recordings
from vramcast.forecast.summary import summarized
from vramcast.forecast.totals_blocks import unit_bytes
from vramcast.names import Product
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX

_RECORDED, _NOT_RECORDED = "hf/gpt2", "hf/phi-1_5"
_NOTE = "attention eager is not counted"
_GPU = Product("NVIDIA-H200")


def _task(**settings: object) -> Task:
    task = parse_task({PREFIX + name.replace("_", "-"): str(value) for name, value in settings.items()})
    assert task is not None
    return task


def _forecast(**settings: object) -> Forecast:
    return choose_forecaster(BUILTIN, 0.05, physics_if_unusable=False).forecast(_task(**settings), _GPU)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_popular_model_has_recorded_scores(precision: str) -> None:
    settings = {"model": _RECORDED, "precision": precision, "batch_size": 8, "sequence_length": 1024}
    eager, fused = _forecast(**settings, attention="eager"), _forecast(**settings)
    heads, blocks, least_bytes = 12, 12, 2
    scores = 8 * heads * blocks * 1024**2 * least_bytes
    assert eager.source is Source.RECORDING
    assert eager.median_bytes - fused.median_bytes > scores
    assert _NOTE not in eager.assumptions


def test_of_other_models_the_layers_tell_the_scores() -> None:
    assert not any(key.startswith(f"{_NOT_RECORDED} ") and key.endswith(" eager") for key in builtin_recordings())
    settings = {"model": _NOT_RECORDED, "precision": "bf16", "batch_size": 2}
    eager = _forecast(**settings, sequence_length=4096, attention="eager")
    half = _forecast(**settings, sequence_length=2048, attention="eager")
    fused = _forecast(**settings, sequence_length=4096)
    heads, blocks = 32, 24
    assert eager.source is Source.MODEL
    assert eager.median_bytes - fused.median_bytes > 2 * heads * blocks * 4096**2 * 2
    assert eager.median_bytes - half.median_bytes > 1.5 * half.median_bytes
    assert _NOTE not in eager.assumptions


def test_plain_fp32_training_of_other_models_too() -> None:
    settings = {"model": _NOT_RECORDED, "batch_size": 2, "sequence_length": 2048}
    assert _forecast(**settings, attention="eager").median_bytes > 1.2 * _forecast(**settings).median_bytes


def test_the_usual_length_counts_where_none_is_said() -> None:
    usual = builtin_catalog().describe(_NOT_RECORDED, None, None).network.sequence_length
    settings = {"model": _NOT_RECORDED, "batch_size": 2, "attention": "eager"}
    assert _forecast(**settings).median_bytes == _forecast(**settings, sequence_length=usual).median_bytes


def test_a_summary_does_not_tell_how_many_heads_there_are_and_the_forecast_says_so() -> None:
    settings = {"architecture": "transformer", "parameters": 124_000_000, "activations": 60_000_000, "layers": 150,
                "sequence_length": 1024, "batch_size": 4, "precision": "bf16", "attention": "eager"}  # fmt: skip
    assert _NOTE in _forecast(**settings).assumptions


def test_a_network_without_attention_takes_what_it_took() -> None:
    settings = {"model": "timm/resnet50", "batch_size": 32}
    assert _forecast(**settings, attention="eager").median_bytes == _forecast(**settings).median_bytes


@pytest.mark.parametrize("checkpointing", ["false", "true"])
def test_scores_of_a_token_grow_with_the_length(checkpointing: str) -> None:
    def of_a_token(length: int, attention: str) -> float:
        network = builtin_catalog().describe(_NOT_RECORDED, None, length).network
        task = _task(model=_NOT_RECORDED, precision="bf16", batch_size=1, sequence_length=length, attention=attention,
                     gradient_checkpointing=checkpointing)  # fmt: skip
        return unit_bytes(summarized(task, network), network)

    long, short = (of_a_token(length, "eager") - of_a_token(length, "sdpa") for length in (8192, 4096))
    assert long > 1.9 * short > 0
