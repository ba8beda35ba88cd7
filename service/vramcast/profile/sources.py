"""The networks that the catalog is built from: name, builder, and the sizes to trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from vramcast.profile.inputs import Inputs


@dataclass(frozen=True, slots=True)
class Depth:
    """A language model's repeated blocks. `make` builds the network with any number of them."""

    blocks: int
    make: Callable[[int], nn.Module]
    longest: int  # tokens that its positions allow, or that its attention reaches
    alike: bool = True  # False: blocks of several kinds alternate


@dataclass(frozen=True, slots=True)
class Latents:
    """A denoiser's inputs by the number of its latents: frames times height times width."""

    at: Callable[[int], Inputs]
    low: int  # recorded from here ...
    high: int  # ... to here, at multiples of the step
    step: int
    most: int  # what is answered
    depth: Depth | None = None  # its repeated blocks, if they are of one kind


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`base` is an image side or a number of tokens. `make` takes the size, which most networks ignore."""

    name: str
    make: Callable[[int], nn.Module]
    inputs: Callable[[int], Inputs]
    base: int
    others: tuple[int, ...]
    tokens: bool = False
    remake: bool = False  # must be rebuilt for another size
    real: bool = False  # the forward pass depends on values, so it is traced on the CPU
    power: int = 2  # an input grows with this power of its size; tokens always with the first
    depth: Depth | None = None  # of a language model whose steps can be recorded
    also: tuple[str, ...] = ()  # names of models that have the same network, without the source
    latents: Latents | None = None  # of a denoiser
    shrink: tuple[float, int] | None = None  # of a denoiser: pixels in a row, and frames after the first, to a latent

    def growth(self, size: int) -> float:
        """How many times as large an input of this size is as one of the base size."""
        return float(size / self.base) ** (1 if self.tokens else self.power)


def all_sources() -> Iterator[ModelSource]:
    # Imported late: these libraries take seconds.
    from vramcast.profile.networks import (  # noqa: PLC0415
        diffusion,
        encoders,
        images,
        language,
        libraries,
        multimodal,
        qwen_vl,
        speech,
        yolo,
    )

    for family in (language, encoders, speech, images, multimodal, qwen_vl, diffusion, yolo, libraries):
        yield from family.sources()


def image_inputs(channels: int = 3) -> Callable[[int], Inputs]:
    return lambda side: Inputs(shapes=((channels, side, side),))


def token_inputs(length: int) -> Inputs:
    return Inputs(sequence_length=length)
