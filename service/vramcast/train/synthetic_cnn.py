"""Rebuilds GPUMemNet's convolutional networks: the dataset lost their channels, joins and pooling.

The published table has one size per layer, without the channels. The profiles multiply in a guess, which counts
the channels twice in some layers and is wrong in others. The weights of every convolution are certain, and so are the
generator's rules: chains, residual blocks of two convolutions, dense blocks of four. Every shape and join follows from
those.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vramcast.errors import InvalidInput
from vramcast.forecast.description import Description, Op, kind_of

_DENSE_LAYERS = 4
_ENDS_BLOCK = ("Conv2d", "AdaptiveAvgPool2d")


@dataclass(slots=True)
class _FeatureMap:
    index: int  # of the operation that produces it; -1 is the input
    channels: int
    side: int

    @property
    def elements(self) -> int:
        return self.channels * self.side * self.side


@dataclass(slots=True)
class _Builder:
    layers: list[list[Any]]
    ops: list[Op] = field(default_factory=list)
    at: int = 0

    @property
    def type(self) -> str:
        return str(self.layers[self.at][0])

    def add(self, type_name: str, reads: list[_FeatureMap], out: _FeatureMap, **facts: Any) -> _FeatureMap:
        kind = kind_of(type_name, 1, facts.get("channels_in", 0), facts.get("kernel", 0))
        self.ops.append(
            Op(
                type=type_name,
                kind=kind,
                in_elements=reads[0].elements,
                out_elements=out.elements,
                inputs=tuple(read.index for read in reads),
                **facts,
            )
        )
        return _FeatureMap(len(self.ops) - 1, out.channels, out.side)

    def conv_block(self, read: _FeatureMap, kernel: int, stride: int = 1) -> _FeatureMap:
        """A convolution and its norm, activation and dropout."""
        parameters = int(self.layers[self.at][2])
        channels, rest = divmod(parameters, kernel * kernel * read.channels + 1)
        if rest:
            raise ValueError(f"layer {self.at}: {parameters} weights do not fit {read.channels} channels")
        out = _FeatureMap(0, channels, -(-read.side // stride))
        tensor = self.add(
            "Conv2d", [read], out,
            parameters=parameters, kernel=kernel, stride=stride, channels_in=read.channels, channels_out=channels,
            positions=out.side * out.side,
        )  # fmt: skip
        self.at += 1
        while self.type not in _ENDS_BLOCK:
            name = "BatchNorm2d" if self.type == "batchnorm2d" else self.type
            tensor = self.add(name, [tensor], tensor, parameters=int(self.layers[self.at][2]))
            self.at += 1
        return tensor

    def join(self, type_name: str, reads: list[_FeatureMap], channels: int) -> _FeatureMap:
        return self.add(type_name, reads, _FeatureMap(0, channels, reads[0].side))


def is_synthetic_cnn(profile: Mapping[str, Any]) -> bool:
    """Only this dataset describes convolutions with six fields per layer."""
    layers = profile["layers"]
    return len(layers[0]) < 9 and layers[0][0] == "Conv2d"


def rebuild(profile: Mapping[str, Any]) -> Description:
    """The exact graph of one generated network."""
    channels, side, _ = profile["input_shape"]
    builder = _Builder(profile["layers"])
    block = {"dense": _dense_block, "residual": _residual_block}.get(profile["group"], _plain_block)
    tensor = _FeatureMap(-1, channels, side)
    try:
        while builder.type == "Conv2d":
            tensor = block(builder, tensor)
        _head(builder, tensor)
    except (ValueError, IndexError) as error:
        raise InvalidInput(f"profile {profile['id']!r} is not a network of this generator: {error}") from error
    return Description(
        ops=tuple(builder.ops),
        parameters=profile["parameters"],
        input_elements=channels * side * side,
        family="cnn",
        replayable=True,
    )


def _plain_block(builder: _Builder, read: _FeatureMap) -> _FeatureMap:
    return builder.conv_block(read, 3)


def _residual_block(builder: _Builder, read: _FeatureMap) -> _FeatureMap:
    """The shortcut comes first; it is a convolution if the channels or the stride change."""
    after = builder.at + 1
    if builder.layers[after][0] == "batchnorm2d":
        after += 1
    shortcut, stride = read, 1
    if builder.layers[after][0] == "Conv2d":
        _, elements, parameters, *_ = builder.layers[builder.at]
        channels = parameters // (read.channels + 1)
        stride = 1 if round(math.sqrt(elements) / channels) == read.side else 2
        shortcut = builder.conv_block(read, 1, stride)
    tensor = builder.conv_block(builder.conv_block(read, 3, stride), 3)
    return builder.join("Add", [tensor, shortcut], tensor.channels)


def _dense_block(builder: _Builder, read: _FeatureMap) -> _FeatureMap:
    features = [read]
    for _ in range(_DENSE_LAYERS):
        joined = builder.join("Concat", features, sum(feature.channels for feature in features))
        features.append(builder.conv_block(joined, 3))
    tensor = builder.join("Concat", features, sum(feature.channels for feature in features))
    half = tensor.channels // 2
    if builder.type == "Conv2d" and builder.layers[builder.at][2] == (tensor.channels + 1) * half:
        tensor = builder.conv_block(tensor, 1)
        if tensor.side > 1:
            tensor = builder.add("AvgPool2d", [tensor], _FeatureMap(0, tensor.channels, tensor.side // 2))
    return tensor


def _head(builder: _Builder, read: _FeatureMap) -> None:
    pooled = builder.add("AdaptiveAvgPool2d", [read], _FeatureMap(0, read.channels, 1))
    classes = int(builder.layers[builder.at + 1][1])
    facts = {"parameters": (read.channels + 1) * classes, "channels_in": read.channels, "channels_out": classes}
    logits = builder.add("Linear", [pooled], _FeatureMap(0, classes, 1), positions=1, **facts)
    builder.add("Softmax" if classes > 1 else "Sigmoid", [logits], logits)
