"""What the catalog is built from: names, how each network is built, and at which sizes it is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from vramcast.profile.inputs import Inputs


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`base` is the side of an image or the tokens; `make` is told the size, which most networks need not know."""

    name: str
    make: Callable[[int], nn.Module]
    inputs: Callable[[int], Inputs]
    base: int
    others: tuple[int, ...]
    tokens: bool = False
    remake: bool = False  # a network of one size is built anew for another
    real: bool = False  # its pass looks at values: traced on the CPU


def all_sources() -> Iterator[ModelSource]:
    # Late: each library takes seconds to import.
    from vramcast.profile import diffusers_models, timm_models, torchvision_models, transformers_models  # noqa: PLC0415

    yield from transformers_models.sources()
    yield from diffusers_models.sources()
    yield from torchvision_models.sources()
    yield from timm_models.sources()


def image_inputs(channels: int = 3) -> Callable[[int], Inputs]:
    return lambda side: Inputs(shapes=((channels, side, side),))


def token_inputs(length: int) -> Inputs:
    return Inputs(sequence_length=length)
