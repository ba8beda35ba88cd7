"""Image and video networks: all of torchvision and timm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import timm
from timm.models import _registry
from torch import nn
from torchvision import models

from vramcast.profile.inputs import Inputs
from vramcast.profile.sources import ModelSource, image_inputs

_CLASSIFIED_AT = {"inception_v3": 299, "vit_h_14": 224}
_SEGMENTED_AT = 520
_DETECTED_AT = 800
# These resize every image to their own size.
_FIXED = {"ssd300_vgg16": 300, "ssdlite320_mobilenet_v3_large": 320, "fasterrcnn_mobilenet_v3_large_320_fpn": 320}
_FRAMES = 16

_TIMM_SHAPE = (3, 224, 224)


def sources() -> Iterator[ModelSource]:
    yield from _torchvision_sources()
    yield from _timm_sources()


def _timm_sources() -> Iterator[ModelSource]:
    """One per architecture: differently trained weights do not change its memory."""
    former = _former_names()
    for name in timm.list_models():
        known = timm.get_pretrained_cfg(name, allow_unregistered=True)
        shape = known.input_size if known else _TIMM_SHAPE
        channels, side, _ = shape if len(shape) == 3 else _TIMM_SHAPE
        make = _sized(timm.create_model, name, side, "img_size")
        yield ModelSource(f"timm/{name}", make, image_inputs(channels), side, (2 * side,), also=former.get(name, ()))


def _former_names() -> dict[str, tuple[str, ...]]:
    """By architecture: the names that its trained weights had before they became tags of it."""
    found: dict[str, list[str]] = {}
    for former, now in _registry._deprecated_models.items():
        architecture = now.partition(".")[0]
        if former != architecture:
            found.setdefault(architecture, []).append(former)
    return {architecture: tuple(sorted(names)) for architecture, names in found.items()}


def _torchvision_sources() -> Iterator[ModelSource]:
    for name in models.list_models(models):
        side = _CLASSIFIED_AT.get(name, 224)
        make = _sized(models.get_model, name, side, "image_size")
        yield ModelSource(f"torchvision/{name}", make, image_inputs(), side, (2 * side,))
    for name in models.list_models(models.segmentation):
        make = _segmentation(name)
        yield ModelSource(f"torchvision/{name}", make, image_inputs(), _SEGMENTED_AT, (_SEGMENTED_AT * 2,))
    for name in models.list_models(models.detection):
        yield _detection(name)
    for name in models.list_models(models.video):
        yield ModelSource(f"torchvision/{name}", _sized(models.get_model, name, 224, "image_size"), _clip, 224, ())


def _clip(side: int) -> Inputs:
    return Inputs(shapes=((3, _FRAMES, side, side),))


def _sized(build: Callable[..., Any], name: str, base: int, option: str) -> Callable[[int], nn.Module]:
    """At its own size with the defaults; at another size with the option that fixed-size networks need."""

    def make(side: int) -> nn.Module:
        model: nn.Module = build(name) if side == base else build(name, **{option: side})
        return model

    return make


def _segmentation(name: str) -> Callable[[int], nn.Module]:
    more = {} if name.startswith("lraspp") else {"aux_loss": True}
    return lambda _side: models.get_model(name, weights_backbone=None, **more)


def _detection(name: str) -> ModelSource:
    """Detection networks resize every image to 800 unless they are built for another size."""
    if name in _FIXED:
        fixed = _FIXED[name]
        return ModelSource(
            f"torchvision/{name}", lambda _side: models.get_model(name, weights_backbone=None), image_inputs(), fixed,
            (), real=True,
        )  # fmt: skip

    def make(side: int) -> nn.Module:
        model: nn.Module = models.get_model(name, weights_backbone=None, min_size=side, max_size=side)
        return model

    return ModelSource(
        f"torchvision/{name}", make, image_inputs(), _DETECTED_AT, (_DETECTED_AT // 2,), remake=True, real=True
    )
