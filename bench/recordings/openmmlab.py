"""Segmentation networks as OpenMMLab's zoo trains them, around torchvision's backbone.

Its ResNets ("v1c") begin with three small convolutions where torchvision has one of 7 x 7, FCN's head has two
convolutions and a third that also reads the head's input, and DeepLabv3's pyramid is twice as wide. The auxiliary head
is the same. From mmsegmentation's `configs/_base_/models/{fcn,deeplabv3}_r50-d8.py`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

_FEATURES = 2048
_WIDTH = 512
_RATES = (12, 24, 36)


def as_openmmlab(model: Any, classes: int, *, pyramid: bool) -> nn.Module:
    """Replaces the parts of torchvision's network that differ."""
    model.backbone.conv1 = nn.Sequential(_convolved(3, 32, 3, stride=2), _convolved(32, 32, 3), nn.Conv2d(
        32, 64, 3, padding=1, bias=False
    ))  # fmt: skip
    model.classifier = (_Pyramid if pyramid else _Convolutions)(classes)
    return model  # type: ignore[no-any-return]


def _convolved(inputs: int, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False), nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )  # fmt: skip


class _Convolutions(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(_convolved(_FEATURES, _WIDTH, 3), _convolved(_WIDTH, _WIDTH, 3))
        self.joined = _convolved(_FEATURES + _WIDTH, _WIDTH, 3)
        self.pixels = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(_WIDTH, classes, 1))

    def forward(self, features: Tensor) -> Tensor:
        return self.pixels(self.joined(torch.cat([features, self.convolutions(features)], dim=1)))  # type: ignore[no-any-return]


class _Pyramid(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), _convolved(_FEATURES, _WIDTH, 1))
        rates = (_convolved(_FEATURES, _WIDTH, 3, dilation=rate) for rate in _RATES)
        self.parts = nn.ModuleList([_convolved(_FEATURES, _WIDTH, 1), *rates])
        self.joined = _convolved(5 * _WIDTH, _WIDTH, 3)
        self.pixels = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(_WIDTH, classes, 1))

    def forward(self, features: Tensor) -> Tensor:
        whole = F.interpolate(self.whole(features), size=features.shape[2:], mode="bilinear", align_corners=False)
        return self.pixels(self.joined(torch.cat([whole, *(part(features) for part in self.parts)], dim=1)))  # type: ignore[no-any-return]
