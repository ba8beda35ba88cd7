"""torchvision's networks for classification, segmentation, detection and video."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn
from torchvision import models

from vramcast.profile.inputs import Inputs
from vramcast.profile.sources import ModelSource, image_inputs

_CLASSIFIED_AT = {"inception_v3": 299, "vit_h_14": 224}
_SEGMENTED_AT = 520
_DETECTED_AT = 800
# These have a size of their own, whatever image comes.
_FIXED = {"ssd300_vgg16": 300, "ssdlite320_mobilenet_v3_large": 320, "fasterrcnn_mobilenet_v3_large_320_fpn": 320}
_FRAMES = 16


def sources() -> Iterator[ModelSource]:
    for name in models.list_models(models):
        side = _CLASSIFIED_AT.get(name, 224)
        yield ModelSource(f"torchvision/{name}", _plain(name, side), image_inputs(), side, (2 * side,))
    for name in models.list_models(models.segmentation):
        yield ModelSource(
            f"torchvision/{name}", _segmentation(name), image_inputs(), _SEGMENTED_AT, (_SEGMENTED_AT * 2,)
        )
    for name in models.list_models(models.detection):
        yield _detection(name)
    for name in models.list_models(models.video):
        yield ModelSource(f"torchvision/{name}", _plain(name, 224), _clip, 224, ())


def _clip(side: int) -> Inputs:
    return Inputs(shapes=((3, _FRAMES, side, side),))


def _plain(name: str, base: int) -> Callable[[int], nn.Module]:
    def make(side: int) -> nn.Module:
        model: nn.Module = models.get_model(name) if side == base else models.get_model(name, image_size=side)
        return model

    return make


def _segmentation(name: str) -> Callable[[int], nn.Module]:
    more = {} if name.startswith("lraspp") else {"aux_loss": True}
    return lambda _side: models.get_model(name, weights_backbone=None, **more)


def _detection(name: str) -> ModelSource:
    """Its own transform would resize every image to 800: it is told the size instead."""
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
