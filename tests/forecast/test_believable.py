"""Figures that people check by hand: activations, blocks, and what a step holds at the very least."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import pairwise

import pytest

from vramcast.forecast.catalog import builtin_catalog
from vramcast.forecast.forecast import Forecast, Source
from vramcast.forecast.forecaster import CachingForecaster
from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.forecast.recordings import builtin_recordings, key_of
from vramcast.forecast.sizes import Variable
from vramcast.forecast.summary import summarize
from vramcast.forecast.tape import Moment
from vramcast.names import Product
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX

A100 = Product("NVIDIA-A100-SXM4-80GB")


@lru_cache
def learned() -> CachingForecaster:
    return choose_forecaster(BUILTIN, 0.05, physics_if_unusable=False)


def forecast(forecaster: CachingForecaster, **settings: str) -> Forecast:
    task = parse_task({PREFIX + name.replace("_", "-"): value for name, value in settings.items()})
    assert task is not None
    return forecaster.forecast(task, A100)


def test_a_linear_layer_three_times_as_wide_is_not_taken_for_attention() -> None:
    """Qwen3-8B's gated layers are exactly that. A quarter of its activations was taken out for it."""
    catalog = builtin_catalog()
    line = catalog.find("hf/Qwen3-8B")
    assert line is not None
    assert line.activations == summarize(catalog.describe("hf/Qwen3-8B", None, None).network).activations
    assert line.activations == pytest.approx(2_130e6, rel=0.01)


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        ("hf/Qwen3-8B", 36), ("hf/gemma-3-1b-pt", 26), ("hf/phi-2", 32), ("hf/Llama-3.1-8B", 32), ("hf/gpt2", 12),
        ("hf/Qwen2.5-7B", 28),
    ],
)  # fmt: skip
def test_checkpointing_keeps_one_input_for_each_block(model: str, blocks: int) -> None:
    """And what goes into the last norm and comes out of it."""
    recording = builtin_recordings().read(key_of(model, "16-bit full checkpointed"))
    point = {Variable.BATCH: 2, Variable.LENGTH: 512}
    tape = recording.pieces[recording.piece_at(point)[0]].tape(point)
    (*_, begins), (*_, ends) = (
        [mark.event for mark in tape.marks if mark.moment is moment] for moment in (Moment.FORWARD, Moment.BACKWARD)
    )
    forward = tape.events[begins:ends]
    kept = set(forward[forward >= 0]) - set(~forward[forward < 0])
    ((_, most),) = Counter(tape.sizes[list(kept)].tolist()).most_common(1)
    assert len({mark.unit for mark in tape.marks if mark.moment is Moment.ENTER}) == blocks
    assert blocks <= most <= blocks + 2


_HELD = (
    "weights", "gradients", "adamw states", "sgd states", "adapters", "fp32 master weights", "frozen weights",
    "optimizer states",
)  # fmt: skip


@pytest.mark.parametrize("batch", ["1", "4"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-bf16"])
@pytest.mark.parametrize("model", ["hf/Llama-3.1-8B", "hf/Qwen3-32B", "hf/gpt2", "hf/Mixtral-8x7B-v0.1", "hf/t5-3b"])
def test_no_median_is_below_the_weights_gradients_and_states(model: str, precision: str, batch: str) -> None:
    run = forecast(learned(), model=model, precision=precision, batch_size=batch, optimizer="adamw")
    held = sum(part.size_bytes for part in run.parts if part.name in _HELD)
    assert run.bound_bytes >= run.median_bytes >= held
    assert sum(part.size_bytes for part in run.parts) == pytest.approx(run.median_bytes, rel=1e-6)


def test_fp32_adamw_needs_sixteen_bytes_for_each_parameter() -> None:
    run = forecast(learned(), model="mistralai/Mistral-7B-v0.1", precision="fp32", optimizer="adamw")
    assert run.median_bytes >= 16 * 7_241_732_096


def test_one_more_image_does_not_take_gigabytes() -> None:
    """ViT-L at 384 pixels took 9 GiB more for batch 36 than for 35."""
    for precision in ("fp32", "amp-fp16", "bf16"):
        runs = [
            forecast(learned(), model="timm/vit_large_patch16_384", precision=precision, batch_size=str(batch))
            for batch in (35, 36)
        ]
        for before, after in (tuple(run.median_bytes for run in runs), tuple(run.bound_bytes for run in runs)):
            assert before < after < 1.05 * before


ON_EACH_PATH = [
    ({"model": "timm/vit_large_patch16_384", "precision": "fp32"}, Source.MODEL),
    ({"model": "timm/resnet50", "precision": "amp-fp16"}, Source.RECORDING),
    ({"model": "hf/gpt2", "precision": "fp32"}, Source.MODEL),
    ({"model": "hf/Llama-3.1-8B", "precision": "bf16", "lora_rank": "16"}, Source.RECORDING),
]


@pytest.mark.parametrize(("settings", "source"), ON_EACH_PATH)
def test_bounds_rise_with_the_batch(settings: dict[str, str], source: Source) -> None:
    runs = [forecast(learned(), **settings, batch_size=str(batch), share="true") for batch in range(1, 41)]
    assert {run.source for run in runs} == {source}
    assert all(before.bound_bytes < after.bound_bytes for before, after in pairwise(runs))
    if source is Source.RECORDING:
        assert all(before.median_bytes < after.median_bytes for before, after in pairwise(runs))


@pytest.mark.parametrize(
    "settings",
    [{"model": "hf/gpt2", "precision": "fp32"}, {"model": "hf/Llama-3.1-8B", "precision": "bf16", "lora_rank": "16"}],
)
def test_bounds_rise_with_the_length(settings: dict[str, str]) -> None:
    lengths = (128, 200, 256, 300, 512, 700, 900, 1024)
    runs = [
        forecast(learned(), **settings, batch_size="4", sequence_length=str(length), share="true") for length in lengths
    ]
    assert all(before.bound_bytes < after.bound_bytes for before, after in pairwise(runs))


@pytest.mark.parametrize("batch", ["6", "8"])
@pytest.mark.parametrize(("settings", "source"), ON_EACH_PATH)
def test_bounds_rise_with_less_risk(settings: dict[str, str], source: Source, batch: str) -> None:
    risks = ("0.3", "0.1", "0.05", "0.01", "0.001")
    runs = [forecast(learned(), **settings, batch_size=batch, max_oom_risk=risk) for risk in risks]
    assert {run.source for run in runs} == {source}
    assert all(before.bound_bytes <= after.bound_bytes for before, after in pairwise(runs))
    assert runs[0].bound_bytes < runs[-1].bound_bytes


@pytest.mark.parametrize(
    ("model", "precision", "weight_bytes", "source"),
    [
        ("timm/resnet50", "fp32", 4 * 25_557_032, Source.MODEL),
        ("hf/Llama-3.1-8B", "bf16", 2 * 8_030_261_248, Source.RECORDING),
    ],
)
def test_ddp_on_four_gpus_adds_buckets_for_the_gradients(
    model: str, precision: str, weight_bytes: int, source: Source
) -> None:
    alone, spread = (
        forecast(learned(), model=model, precision=precision, batch_size="16", data_parallel_size=gpus)
        for gpus in ("1", "4")
    )
    assert {alone.source, spread.source} == {source}
    # The learned correction is a factor, of the buckets too.
    assert spread.median_bytes - alone.median_bytes == pytest.approx(weight_bytes, rel=0.15)


SHARDED = {"precision": "bf16", "zero_stage": "3", "data_parallel_size": "8"}


@pytest.mark.parametrize("model", ["timm/resnet50", "hf/Llama-3.1-8B"])
def test_master_weights_of_sharded_bf16_are_told(model: str) -> None:
    assert MASTERS in forecast(learned(), model=model, **SHARDED).assumptions
    for other in ({"precision": "amp-bf16"}, {"master_weights": "false"}):
        assert MASTERS not in forecast(learned(), model=model, **{**SHARDED, **other}).assumptions


MASTERS = (
    "fp32 master weights, as DeepSpeed keeps them; FSDP of a model cast to bf16 has none: "
    "set vramcast.dev/master-weights to false"
)


def test_fsdp_of_a_cast_model_has_neither_masters_nor_fp32_states() -> None:
    """torch shards what `model.to(bf16)` left: 2 bytes for each weight, gradient and state instead of 4 + 4 + 8."""
    deepspeed, fsdp = (
        forecast(learned(), model="hf/Llama-3.1-8B", gradient_checkpointing="true", **SHARDED, master_weights=given)
        for given in ("true", "false")
    )
    assert {deepspeed.source, fsdp.source} == {Source.RECORDING}
    held = {part.name: part.size_bytes for part in fsdp.parts}
    shard = 2 * 8_030_261_248 / 8
    assert held["optimizer states"] == pytest.approx(2 * shard, rel=0.05)
    assert deepspeed.median_bytes - fsdp.median_bytes > 3 * shard
    assert any("as fsdp does it" in note for note in fsdp.assumptions)


def test_layers_are_used_for_plain_fp32_training_only() -> None:
    """In other settings they would need factors that nobody measured: totals do, and the forecast says so."""
    settings = {"model": "timm/vit_giant_patch14_clip_224", "batch_size": "4"}
    plain, mixed = (forecast(learned(), **settings, precision=precision) for precision in ("fp32", "int8"))
    assert {part.name for part in plain.parts} >= {"input", "activations"}
    assert "input" not in {part.name for part in mixed.parts}
    assert any(note.startswith("forecast from a summary of timm/vit_giant") for note in mixed.assumptions)
    assert not any("a summary" in note for note in plain.assumptions)
