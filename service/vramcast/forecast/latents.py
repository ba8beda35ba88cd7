"""The size of a denoiser's input. It reads latents, but people know the pixels."""

from __future__ import annotations

from vramcast.errors import FieldError, InvalidTask
from vramcast.task.vocabulary import PREFIX

_PIXEL_CHANNELS = 3
# The autoencoders of all denoisers in the catalog shrink a side by 8, and all frames after the first by 4.
_SIDE = 8
_FRAMES = 4
# Latents of 16 to 4,096 pixels a side: beyond, somebody has mistaken pixels for latents, or the other way round.
_SIDES = range(2, 513)

Size = tuple[int, ...]


def size(name: str, traced: Size, given: Size) -> tuple[Size, tuple[str, ...]]:
    """The latents that are meant, and a note if they follow from pixels. Raises InvalidTask."""
    found: Size = given
    notes: tuple[str, ...] = ()
    if len(given) == len(traced) and given[0] == _PIXEL_CHANNELS and _whole(given):
        found = (traced[0], *(1 + (frames - 1) // _FRAMES for frames in given[1:-2]), *(s // _SIDE for s in given[-2:]))
        notes = (f"input-size {shown_size(found)}, the latents of {shown_size(given)}",)
    if len(found) != len(traced) or found[0] != traced[0] or any(side not in _SIDES for side in found[-2:]):
        examples = f"latents such as {shown_size(traced)}, or pixels such as {shown_size(_pixels(traced))}"
        raise InvalidTask([FieldError(f"{PREFIX}input-size", shown_size(given), f"{name}: expected {examples}")])
    return found, notes


def _whole(pixels: Size) -> bool:
    return all(side % _SIDE == 0 for side in pixels[-2:])


def _pixels(latents: Size) -> Size:
    frames = (1 + (count - 1) * _FRAMES for count in latents[1:-2])
    return (_PIXEL_CHANNELS, *frames, *(side * _SIDE for side in latents[-2:]))


def shown_size(shape: Size) -> str:
    return "x".join(map(str, shape))
