"""Every architecture of timm, at the size of its default configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import timm
from torch import nn

from vramcast.profile.inputs import Inputs
from vramcast.profile.sources import ModelSource

_DEFAULT_SHAPE = (3, 224, 224)


def sources() -> Iterator[ModelSource]:
    """One entry for each architecture: weights of several trainings differ in nothing that counts here."""
    for name in timm.list_models():
        channels, side, _ = _shape(name)
        yield ModelSource(f"timm/{name}", _make(name, side), _inputs(channels), side, (2 * side,))


def _shape(name: str) -> tuple[int, int, int]:
    known = timm.get_pretrained_cfg(name, allow_unregistered=True)
    shape = known.input_size if known else _DEFAULT_SHAPE
    return shape if len(shape) == 3 else _DEFAULT_SHAPE


def _inputs(channels: int) -> Callable[[int], Inputs]:
    return lambda side: Inputs(shapes=((channels, side, side),))


def _make(name: str, base: int) -> Callable[[int], nn.Module]:
    """At its own size as everybody builds it; at another one, with the argument that those of fixed size take."""

    def make(side: int) -> nn.Module:
        model: nn.Module = timm.create_model(name) if side == base else timm.create_model(name, img_size=side)
        return model

    return make
