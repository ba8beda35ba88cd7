"""A denoiser of diffusers as a source of the catalog: at an image's side, and at any number of latents.

All that a denoiser computes grows with the number of its latents, whatever their frames, height and width are. So one
recording over that number answers every size and aspect ratio, and every length of a video.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import diffusers
import torch
from torch import Tensor, nn

from vramcast.profile.inputs import Inputs
from vramcast.profile.sources import Depth, Latents, ModelSource

Config = dict[str, Any]
Shape = tuple[int, ...]  # channels, frames of a video, height, width
# What a batch of so many samples of this shape is, by the names of the forward pass.
Batch = Callable[[Config, int, Shape], dict[str, Any]]
# The largest recording is this many times as large as the smallest. The figures between and beyond follow from it.
_GROWTH = 6
# A minute of video in 720p has fewer.
_MOST_LATENTS = 1 << 24


@dataclass(frozen=True, slots=True)
class Denoiser:
    """`kind` is its class. `side` pixels in a row, and `frames` of a video after the first, are one latent.

    It is recorded on strips of `rows` latents, `width` of which are the least that it can take at a time.
    """

    kind: str
    config: Config
    batch: Batch
    latents: Shape
    side: float = 8
    frames: int = 4
    also: tuple[str, ...] = ()
    others: tuple[float, ...] = (0.5,)  # sizes to trace, relative to the usual one
    rows: int = 32
    width: int = 2
    depth: int = 1  # frames that it can take at the least
    blocks: str = "num_layers"  # the field that counts its blocks; empty: they are of several kinds
    prepare: Callable[[Any], None] | None = None  # what the pass needs beside the class


def denoiser_source(name: str, denoiser: Denoiser) -> ModelSource:
    side = denoiser.latents[-2]
    return ModelSource(
        f"diffusers/{name}", _maker(denoiser), _at_side(denoiser), side, tuple(int(side * o) for o in denoiser.others),
        also=denoiser.also, shrink=(denoiser.side, denoiser.frames), latents=_counted(denoiser),
    )  # fmt: skip


def _maker(denoiser: Denoiser) -> Callable[[int], nn.Module]:
    return lambda _side: _made(denoiser, {})


def _made(denoiser: Denoiser, changed: Config) -> nn.Module:
    model: nn.Module = getattr(diffusers, denoiser.kind)(**denoiser.config, **changed)
    if denoiser.prepare is not None:
        denoiser.prepare(model)
    return model


def _depth(denoiser: Denoiser) -> Depth | None:
    field = denoiser.blocks
    if not field:
        return None
    usual = signature(getattr(diffusers, denoiser.kind).__init__).parameters[field].default
    others = {name: value for name, value in denoiser.config.items() if name != field}

    def make(blocks: int) -> nn.Module:
        return _made(replace(denoiser, config=others), {field: blocks})

    return Depth(denoiser.config.get(field, usual), make, 0)


def _at_side(denoiser: Denoiser) -> Callable[[int], Inputs]:
    *outer, base, wide = denoiser.latents

    def inputs(height: int) -> Inputs:
        return _inputs(denoiser, (*outer, height, wide * height // base))

    return inputs


def _counted(denoiser: Denoiser) -> Latents:
    """Strips, because a video's latents would be too many to be recorded at several lengths."""
    channels, *frames, _, _ = denoiser.latents
    strip = (channels, *(denoiser.depth for _ in frames), denoiser.rows)
    a_column = math.prod(strip[1:])
    step = a_column * denoiser.width
    low = a_column * max(denoiser.rows, denoiser.width)
    usual = math.prod(denoiser.latents[1:])

    def at(count: int) -> Inputs:
        return _inputs(denoiser, (*strip, count // a_column))

    return Latents(at, low, _GROWTH * low, step, max(usual, _MOST_LATENTS), _depth(denoiser))


def _inputs(denoiser: Denoiser, shape: Shape) -> Inputs:
    def make(samples: int) -> dict[str, Any]:
        return denoiser.batch(denoiser.config, samples, shape)

    return Inputs(shapes=(shape,), make=make)


def zeros(*sizes: int) -> Tensor:
    return torch.zeros(*sizes)


def tokens(shape: Shape, patch: int = 2) -> int:
    """Patches of an image, or of all frames of a video."""
    return math.prod(shape[1:]) // (patch * patch)
