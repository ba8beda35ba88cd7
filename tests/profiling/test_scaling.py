"""A catalog model scaled to another size, against a trace at that size."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from vramcast.forecast.description import encode_profile
from vramcast.forecast.forecast import Forecast
from vramcast.forecast.forecaster import CachingForecaster
from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.names import Product
from vramcast.profile.building import profile_at
from vramcast.profile.sources import ModelSource, all_sources
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX

A100 = Product("NVIDIA-A100-SXM4-40GB")
RUN = {"batch-size": "16", "optimizer": "adamw"}


@lru_cache
def forecaster() -> CachingForecaster:
    return choose_forecaster(BUILTIN, 0.05, physics_if_unusable=False)


@lru_cache
def sources() -> dict[str, ModelSource]:
    return {source.name.lower(): source for source in all_sources()}


def forecast(**description: Any) -> Forecast:
    named = {key.replace("_", "-"): str(value) for key, value in description.items()}
    task = parse_task({PREFIX + key: value for key, value in (named | RUN).items()})
    assert task is not None
    return forecaster().forecast(task, A100)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("timm/resnet50", 160),
        ("timm/resnet50", 288),
        ("timm/vgg16", 288),
        ("timm/efficientnet_b0", 256),
        ("timm/convnext_tiny", 288),
        ("timm/vit_base_patch16_224", 288),
        ("torchvision/densenet121", 160),
        ("torchvision/resnet18", 96),
        ("hf/gpt2", 768),
        ("hf/bert-base-uncased", 128),
        ("hf/t5-small", 256),
        ("hf/llama-3.2-1b", 1024),
    ],
)
def test_a_scaled_catalog_model_has_the_forecast_of_its_trace(model: str, size: int) -> None:
    source = sources()[model]
    where = {"sequence_length": size} if source.tokens else {"input_size": f"3x{size}x{size}"}
    traced = forecast(profile=encode_profile(profile_at(source, size)))
    named = forecast(model=model, **where)
    assert named.median_bytes == pytest.approx(traced.median_bytes, rel=0.01)
    # A trace knows one length. The bound of a name at any other lies on a line between powers of two.
    on_a_line = source.tokens and size & (size - 1)
    assert named.bound_bytes == pytest.approx(traced.bound_bytes, rel=0.05 if on_a_line else 0.025)
