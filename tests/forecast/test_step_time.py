"""Step times: rise with the batch, are wider or missing with a reason where nothing was timed, and never fail."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.forecast.networks import mlp, traced_cnn
from vramcast.errors import ArtifactUnusable
from vramcast.forecast.catalog import builtin_artifact
from vramcast.forecast.description import encode_profile
from vramcast.forecast.speed_artifact import MANIFEST, MODEL, load_speed_artifact
from vramcast.forecast.step_time import StepTime, StepTimer, builtin_step_timer
from vramcast.hardware.peaks import PEAKS
from vramcast.hardware.products import PRODUCTS
from vramcast.names import Product
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX

RTX_3090 = Product("NVIDIA-GeForce-RTX-3090")
A100 = Product("NVIDIA-A100-SXM4-40GB")


def task(**settings: str) -> Task:
    parsed = parse_task({PREFIX + name.replace("_", "-"): value for name, value in settings.items()})
    assert parsed is not None
    return parsed


def resnet(**settings: str) -> Task:
    return task(**({"model": "timm/resnet50", "batch_size": "64", "precision": "amp-fp16"} | settings))


def forecast(given: Task, product: Product = RTX_3090) -> StepTime:
    return builtin_step_timer().forecast(given, product)


def wideness(step: StepTime) -> float:
    assert step.seconds is not None
    assert step.low_seconds is not None
    assert step.high_seconds is not None
    assert step.low_seconds < step.seconds < step.high_seconds
    return step.high_seconds / step.low_seconds


def test_a_timed_kind_of_run_has_a_time_and_a_range_around_it() -> None:
    step = forecast(resnet())
    assert wideness(step) > 1.0
    rate = step.samples_per_second
    assert rate is not None
    assert step.seconds == pytest.approx(64 / rate)
    assert step.flops == pytest.approx(2 * 4.089e9 * 64 * 3, rel=1e-3)
    # An RTX 3090 trains ResNet-50 with 400 to 1200 images per second in mixed precision.
    assert 400 < rate < 1200
    assert (step.notes, step.missing) == ((), "")


@pytest.mark.parametrize(
    "name", ["timm/resnet50", "timm/vit_base_patch16_224", "timm/mobilenetv3_large_100", "hf/gpt2"]
)
@pytest.mark.parametrize("product", [RTX_3090, A100])
def test_a_larger_batch_never_takes_less_time(name: str, product: Product) -> None:
    times = [
        forecast(resnet(model=name, batch_size=str(batch)), product).seconds for batch in (1, 2, 3, 7, 16, 100, 512)
    ]
    assert all(times)
    assert times == sorted(times, key=lambda seconds: seconds or 0.0)


def test_a_chain_of_layers_has_a_time_too() -> None:
    """Its profile lists no shapes, but what a linear layer writes tells its width."""
    step = forecast(task(profile=encode_profile(mlp(width=4096)), batch_size="256", precision="amp-fp16"))
    assert wideness(step) > 1.0


def test_checkpointing_computes_once_more_and_lora_once_less() -> None:
    plain = forecast(resnet())
    again, adapters = forecast(resnet(gradient_checkpointing="true")), forecast(resnet(lora_rank="8"))
    assert plain.seconds is not None
    assert plain.flops is not None
    assert again.flops == pytest.approx(plain.flops * 4 / 3)
    assert adapters.flops == pytest.approx(plain.flops * 2 / 3)
    assert (adapters.seconds or 0.0) < plain.seconds < (again.seconds or 0.0)


def test_accumulated_batches_take_their_time_each() -> None:
    once, often = forecast(resnet()), forecast(resnet(gradient_accumulation="8"))
    assert once.seconds is not None
    assert often.seconds is not None
    assert 7 * once.seconds < often.seconds <= 8 * once.seconds


@pytest.mark.parametrize(
    ("given", "product", "trait"),
    [
        (resnet(), A100, "no run on NVIDIA-A100-SXM4-40GB was timed"),
        (resnet(precision="fp32"), RTX_3090, "hardly any run in fp32 was timed"),
        (task(model="hf/gpt2", batch_size="4", precision="amp-bf16"), RTX_3090, "no network that reads tokens"),
        (resnet(lora_rank="8"), RTX_3090, "no run with LoRA was timed"),
        (resnet(gradient_checkpointing="true"), RTX_3090, "no run with gradient checkpointing was timed"),
    ],
)
def test_what_was_never_timed_has_a_wider_range_and_says_why(given: Task, product: Product, trait: str) -> None:
    timed, step = forecast(resnet()), forecast(given, product)
    assert any(trait in note for note in step.notes)
    assert wideness(step) > wideness(timed)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (resnet(zero_stage="2", data_parallel_size="4"), "ZeRO stage 2"),
        (resnet(data_parallel_size="4"), "several GPUs"),
        (resnet(precision="fp8"), "precision fp8"),
    ],
)
def test_settings_that_nobody_timed_tell_the_work_and_the_reason(given: Task, why: str) -> None:
    step = forecast(given)
    assert step.seconds is None
    assert why in step.missing
    assert step.flops


def test_a_product_without_specifications_tells_the_work_only() -> None:
    step = forecast(resnet(), Product("AMD-Instinct-MI300X"))
    assert step.seconds is None
    assert "AMD-Instinct-MI300X" in step.missing
    assert step.flops


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (task(gpu_memory="10Gi"), "describes no network"),
        (task(parameters="1000000", activations="2000000", batch_size="8"), "totals"),
        (task(model="timm/no_such_model"), "no model in the catalog"),
    ],
)
def test_without_layers_there_is_neither_work_nor_time(given: Task, why: str) -> None:
    step = forecast(given)
    assert (step.flops, step.seconds) == (None, None)
    assert why in step.missing


def test_a_profile_that_was_not_counted_is_forecast_with_doubt() -> None:
    step = forecast(task(profile=encode_profile(traced_cnn()), batch_size="64", precision="amp-fp16"))
    assert step.seconds
    assert "attention and functional operations were not counted" in step.notes


def test_every_product_has_peaks() -> None:
    assert set(PRODUCTS) <= set(PEAKS)
    assert all(peaks.fp32_tflops <= (peaks.fp16_tflops or peaks.fp32_tflops) for peaks in PEAKS.values())


# ---------------------------------------------------------------------- artifacts that cannot be used


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    for name in (MODEL, MANIFEST):
        shutil.copy(builtin_artifact() / name, tmp_path)
    return tmp_path


def test_the_shipped_artifact_is_small(artifact: Path) -> None:
    assert load_speed_artifact(artifact).version.startswith("speed-")
    assert (artifact / MODEL).stat().st_size < 8_000_000


@pytest.mark.parametrize("damage", ["no model", "other model", "no manifest", "no JSON", "other layout", "no factor"])
def test_an_unusable_artifact_is_refused_and_stops_no_forecast(artifact: Path, damage: str) -> None:
    manifest = json.loads((artifact / MANIFEST).read_text())
    match damage:
        case "no model":
            (artifact / MODEL).unlink()
        case "other model":
            (artifact / MODEL).write_bytes(b"other")
        case "no manifest":
            (artifact / MANIFEST).unlink()
        case "no JSON":
            (artifact / MANIFEST).write_text("{")
        case "other layout":
            (artifact / MANIFEST).write_text(json.dumps(manifest | {"features": "speed-0"}))
        case "no factor":
            del manifest["range_factor"]
            (artifact / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ArtifactUnusable, match=str(artifact)):
        load_speed_artifact(artifact)
    step = StepTimer(artifact).forecast(resnet(), RTX_3090)
    assert step.seconds is None
    assert step.flops
    assert str(artifact) in step.missing
