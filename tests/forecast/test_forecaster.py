from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.forecast.networks import traced_cnn
from vramcast import __version__
from vramcast.errors import InvalidTask
from vramcast.forecast.description import encode_profile
from vramcast.forecast.forecast import Source
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import Allocator, Attention, Kernels, Level, Offload, Precision

A100 = Product("NVIDIA-A100-SXM4-40GB")
SUMMARY = Task(Level.SUMMARY, parameters=10**8, activations=10**7, batch_size=8)


def test_the_users_own_number_is_used_to_the_mib() -> None:
    forecast = PhysicsForecaster(0.05).forecast(Task(Level.GIVEN, gpu_memory_mib=12_345), A100)
    assert (forecast.need_mib, forecast.source) == (12_345, Source.GIVEN)


def test_the_pods_own_risk_overrides_the_default() -> None:
    forecaster = PhysicsForecaster(0.05)
    careful = Task(Level.SUMMARY, parameters=10**8, activations=10**7, batch_size=8, max_oom_risk=0.001)
    assert forecaster.forecast(careful, A100).risk == 0.001
    assert forecaster.forecast(careful, A100).need_mib > forecaster.forecast(SUMMARY, A100).need_mib


@pytest.mark.parametrize(
    ("task", "key"),
    [(Task(Level.NAME, model="timm/resnet5000"), "model"), (Task(Level.PROFILE, profile="v1:abc"), "profile")],
)
def test_an_unusable_description_gets_a_message_with_alternatives(task: Task, key: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        PhysicsForecaster(0.05).forecast(task, A100)
    assert caught.value.errors[0].field == f"vramcast.dev/{key}"
    assert "vramcast.dev/gpu-memory" in str(caught.value)


def test_the_same_task_gets_the_cached_forecast() -> None:
    forecaster = PhysicsForecaster(0.05)
    assert forecaster.forecast(SUMMARY, A100) is forecaster.forecast(SUMMARY, A100)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"attention": Attention.EAGER}, "attention eager is not counted"),
        ({"kernels": Kernels.LIGER}, "kernels liger is not counted"),
        ({"lora_rank": 8, "lora_targets": "qv"}, "lora-targets qv is not counted"),
        ({"offload": Offload.OPTIMIZER}, "offload optimizer is not counted"),
        ({"allocator": Allocator.EXPANDABLE_SEGMENTS}, "allocator expandable-segments is not counted"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_without_effect_on_the_figures_is_told(change: dict[str, Any], note: str) -> None:
    forecaster = PhysicsForecaster(0.05)
    plain = forecaster.forecast(replace(SUMMARY, lora_rank=change.get("lora_rank")), A100)
    told = forecaster.forecast(replace(SUMMARY, **change), A100)
    assert told == replace(plain, assumptions=(note,))


def test_master_weights_are_told_because_only_deepspeed_has_them() -> None:
    sharded = replace(SUMMARY, zero_stage=3, data_parallel_size=8, precision=Precision.BF16)
    (note,) = PhysicsForecaster(0.05).forecast(sharded, A100).assumptions
    assert note.startswith("fp32 master weights, as DeepSpeed keeps them; FSDP of a model cast to bf16 has none")
    assert note.endswith("set vramcast.dev/master-weights to false")
    mixed = replace(sharded, precision=Precision.AMP_BF16)
    assert PhysicsForecaster(0.05).forecast(mixed, A100).assumptions == ()


def test_settings_that_the_figures_are_right_for_are_not_mentioned() -> None:
    task = replace(SUMMARY, attention=Attention.SDPA, gradient_accumulation=4)
    assert PhysicsForecaster(0.05).forecast(task, A100).assumptions == ()


READS_TOKENS = encode_profile({**traced_cnn(), "input_shape": None, "sequence_length": 64})
READS_IMAGES = encode_profile(traced_cnn())


@pytest.mark.parametrize(
    ("profile", "size", "key", "words"),
    [
        (READS_IMAGES, {"input_size": (3, 64, 64)}, "input-size", "with --input 3x64x64"),
        (READS_IMAGES, {"sequence_length": 64}, "sequence-length", "the profile reads no tokens"),
        (READS_TOKENS, {"sequence_length": 128}, "sequence-length", "made for 64 tokens: run .* --sequence-length 128"),
        (READS_TOKENS, {"input_size": (3, 64, 64)}, "input-size", "made for samples of 64 elements"),
    ],
)
def test_a_size_that_contradicts_the_profile_is_refused(
    profile: str, size: dict[str, Any], key: str, words: str
) -> None:
    with pytest.raises(InvalidTask, match=words) as caught:
        PhysicsForecaster(0.05).forecast(Task(Level.PROFILE, profile=profile, **size), A100)
    assert caught.value.errors[0].field == f"vramcast.dev/{key}"


@pytest.mark.parametrize(
    ("profile", "size"), [(READS_IMAGES, {"input_size": (3, 32, 32)}), (READS_TOKENS, {"sequence_length": 64})]
)
def test_the_size_that_the_profile_was_made_for_may_be_repeated(profile: str, size: dict[str, Any]) -> None:
    forecaster = PhysicsForecaster(0.05)
    plain = Task(Level.PROFILE, profile=profile)
    assert forecaster.forecast(replace(plain, **size), A100) == forecaster.forecast(plain, A100)


def test_a_profile_of_a_newer_version_gets_the_advice_to_upgrade_or_profile_again() -> None:
    with pytest.raises(InvalidTask) as caught:
        PhysicsForecaster(0.05).forecast(Task(Level.PROFILE, profile="v3:eNqrVgo"), A100)
    message = str(caught.value)
    assert "written by a newer vramcast (v3;" in message
    assert f"upgrade the service, or run `vramcast profile` of version {__version__} again" in message
