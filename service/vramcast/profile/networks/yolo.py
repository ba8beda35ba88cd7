"""YOLOv8, written after its published description: no library that builds it is among the dependencies.

The parameter counts are those that Ultralytics prints. Only the network is here, not the assignment of boxes in the
loss, whose memory depends on how many objects an image has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from vramcast.profile.sources import ModelSource, image_inputs

_SIDE = 640
_CLASSES = 80
_BINS = 16  # of the distribution over each side of a box
# Depth, width, and the most channels before the width applies.
_SCALES = {"n": (1 / 3, 0.25, 1024), "s": (1 / 3, 0.5, 1024), "m": (2 / 3, 0.75, 768), "l": (1.0, 1.0, 512),
           "x": (1.0, 1.25, 512)}  # fmt: skip


def sources() -> Iterator[ModelSource]:
    for letter, scale in _SCALES.items():
        name = f"yolov8{letter}"
        make = partial(_make, *scale)
        yield ModelSource(f"ultralytics/{name}", make, image_inputs(), _SIDE, (_SIDE // 2,), also=(f"{name}.pt",))


def _make(depth: float, width: float, most: int, _side: int) -> nn.Module:
    return Yolo(depth, width, most)


def _convolution(given: int, made: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(given, made, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(made), nn.SiLU(inplace=True)
    )


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, shortcut: bool) -> None:
        super().__init__()
        self.first = _convolution(channels, channels, 3)
        self.second = _convolution(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, given: Tensor) -> Tensor:
        made: Tensor = self.second(self.first(given))
        return given + made if self.shortcut else made


class _Split(nn.Module):
    """C2f: half of the channels pass through bottlenecks, and every intermediate result is kept."""

    def __init__(self, given: int, made: int, count: int, *, shortcut: bool) -> None:
        super().__init__()
        half = made // 2
        self.first = _convolution(given, 2 * half)
        self.last = _convolution((2 + count) * half, made)
        self.blocks = nn.ModuleList(_Bottleneck(half, shortcut) for _ in range(count))

    def forward(self, given: Tensor) -> Tensor:
        parts = list(self.first(given).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        result: Tensor = self.last(torch.cat(parts, 1))
        return result


class _Pooled(nn.Module):
    """SPPF: three poolings in a row, side by side with their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _convolution(channels, channels // 2)
        self.last = _convolution(2 * channels, channels)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, given: Tensor) -> Tensor:
        parts = [self.first(given)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        result: Tensor = self.last(torch.cat(parts, 1))
        return result


class _Head(nn.Module):
    """Boxes and classes at one resolution."""

    def __init__(self, channels: int, boxes: int, classes: int) -> None:
        super().__init__()
        self.boxes = self._branch(channels, boxes, 4 * _BINS)
        self.classes = self._branch(channels, classes, _CLASSES)

    @staticmethod
    def _branch(given: int, inner: int, made: int) -> nn.Sequential:
        return nn.Sequential(_convolution(given, inner, 3), _convolution(inner, inner, 3), nn.Conv2d(inner, made, 1))

    def forward(self, given: Tensor) -> Tensor:
        return torch.cat((self.boxes(given), self.classes(given)), 1)


class Yolo(nn.Module):
    def __init__(self, depth: float, width: float, most: int) -> None:
        super().__init__()
        c = _widened(width, most)
        few, many = max(round(3 * depth), 1), max(round(6 * depth), 1)
        self.stem = nn.Sequential(
            _convolution(3, c(64), 3, 2), _convolution(c(64), c(128), 3, 2),
            _Split(c(128), c(128), few, shortcut=True),
        )  # fmt: skip
        self.to_8 = _stage(c(128), c(256), many)
        self.to_16 = _stage(c(256), c(512), many)
        self.to_32 = nn.Sequential(*_stage(c(512), c(1024), few), _Pooled(c(1024)))
        self.up = nn.Upsample(scale_factor=2)
        self.up_16 = _Split(c(1024) + c(512), c(512), few, shortcut=False)
        self.up_8 = _Split(c(512) + c(256), c(256), few, shortcut=False)
        self.down_16 = _convolution(c(256), c(256), 3, 2)
        self.out_16 = _Split(c(256) + c(512), c(512), few, shortcut=False)
        self.down_32 = _convolution(c(512), c(512), 3, 2)
        self.out_32 = _Split(c(512) + c(1024), c(1024), few, shortcut=False)
        boxes, classes = max(16, c(256) // 4, 4 * _BINS), max(c(256), min(_CLASSES, 100))
        self.heads = nn.ModuleList(_Head(channels, boxes, classes) for channels in (c(256), c(512), c(1024)))
        # Turns the distribution over a box's sides into the sides. It is not trained, and training does not run it.
        self.expectation = nn.Conv2d(_BINS, 1, 1, bias=False).requires_grad_(False)

    def forward(self, images: Tensor) -> list[Tensor]:
        at_8 = self.to_8(self.stem(images))
        at_16 = self.to_16(at_8)
        at_32 = self.to_32(at_16)
        up_16 = self.up_16(torch.cat((self.up(at_32), at_16), 1))
        out_8 = self.up_8(torch.cat((self.up(up_16), at_8), 1))
        out_16 = self.out_16(torch.cat((self.down_16(out_8), up_16), 1))
        out_32 = self.out_32(torch.cat((self.down_32(out_16), at_32), 1))
        return [head(level) for head, level in zip(self.heads, (out_8, out_16, out_32), strict=True)]


def _stage(given: int, made: int, count: int) -> nn.Sequential:
    return nn.Sequential(_convolution(given, made, 3, 2), _Split(made, made, count, shortcut=True))


def _widened(width: float, most: int) -> Callable[[int], int]:
    """Rounded up to a multiple of eight."""
    return lambda channels: -(-int(min(channels, most) * width) // 8) * 8
