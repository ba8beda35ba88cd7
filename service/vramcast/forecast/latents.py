"""The size of a denoiser's input. It reads latents, but people know the pixels."""

from __future__ import annotations

import math

from vramcast.errors import FieldError, InvalidTask
from vramcast.task.vocabulary import PREFIX

_PIXEL_CHANNELS = 3
_ROUNDING = 1e-6  # one autoencoder shrinks a side by 128 thirds
# What most autoencoders make one latent of: pixels in a row, and frames after the first.
USUAL = (8.0, 4)
# Of 16 to 4,096 pixels a side, in the usual size. Beyond, somebody has mistaken pixels for latents, or the other way
# round.
_SIDES = range(2, 513)

Size = tuple[int, ...]


def size(name: str, traced: Size, given: Size, shrink: tuple[float, int] = USUAL) -> tuple[Size, tuple[str, ...]]:
    """The latents that are meant, and a note if they follow from pixels. Raises InvalidTask."""
    found: Size = given
    notes: tuple[str, ...] = ()
    side, frames = shrink
    if len(given) == len(traced) and given[0] == _PIXEL_CHANNELS and _whole(given, side):
        kept = (1 + (count - 1) // frames for count in given[1:-2])
        found = (traced[0], *kept, *(round(pixels / side) for pixels in given[-2:]))
        notes = (f"input-size {shown_size(found)}, the latents of {shown_size(given)}",)
    if len(found) != len(traced) or found[0] != traced[0] or any(side not in _SIDES for side in found[-2:]):
        examples = f"latents such as {shown_size(traced)}, or pixels such as {shown_size(_pixels(traced, shrink))}"
        raise InvalidTask([FieldError(f"{PREFIX}input-size", shown_size(given), f"{name}: expected {examples}")])
    return found, notes


def counted(latents: Size) -> int:
    """All that a denoiser computes grows with this, whatever the frames and sides are."""
    return math.prod(latents[1:])


def _whole(pixels: Size, side: float) -> bool:
    return all(abs(count / side - round(count / side)) < _ROUNDING for count in pixels[-2:])


def _pixels(latents: Size, shrink: tuple[float, int]) -> Size:
    frames = (1 + (count - 1) * shrink[1] for count in latents[1:-2])
    return (_PIXEL_CHANNELS, *frames, *(round(count * shrink[0]) for count in latents[-2:]))


def shown_size(shape: Size) -> str:
    return "x".join(map(str, shape))
