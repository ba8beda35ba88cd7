"""Small networks as profiles."""

from __future__ import annotations

from typing import Any


def mlp(width: int = 256, depth: int = 3, classes: int = 10) -> dict[str, Any]:
    layers: list[list[Any]] = []
    for _ in range(depth):
        layers += [["Linear", width, width * width + width, None, None, False], ["ReLU", width, 0, None, None, False]]
    layers += [["Linear", classes, width * classes + classes, None, None, False]]
    layers += [["Softmax", classes, 0, None, None, False]]
    parameters = sum(layer[2] for layer in layers)
    return {
        "id": f"mlp/{width}-{depth}", "family": "mlp", "group": "uniform", "input_shape": [width],
        "parameters": parameters, "layers": layers,
    }  # fmt: skip


def synthetic_cnn(channels: int = 16, side: int = 32, depth: int = 3, group: str = "uniform") -> dict[str, Any]:
    """In the dataset's format, where the elements of a layer contain the channels twice."""
    layers: list[list[Any]] = []
    read = 3
    for _ in range(depth):
        elements = channels * channels * side * side
        layers.append(["Conv2d", elements, (9 * read + 1) * channels, [3, 3], 1, False])
        layers.append(["batchnorm2d", elements, 2 * channels, None, None, False])
        layers.append(["ReLU", elements, 0, None, None, False])
        read = channels
    layers.append(["AdaptiveAvgPool2d", channels * channels, 0, None, None, False])
    layers.append(["Linear", 10, (channels + 1) * 10, None, None, False])
    layers.append(["softmax", 10 * channels, 0, None, None, False])
    return {
        "id": f"cnn/{group}-{channels}-{side}-{depth}", "family": "cnn", "group": group,
        "input_shape": [3, side, side], "parameters": sum(layer[2] for layer in layers), "layers": layers,
    }  # fmt: skip


def traced_cnn(channels: int = 16, side: int = 32, depth: int = 3, group: str = "resnet") -> dict[str, Any]:
    """Leaf modules with shapes, and what autograd saves."""
    layers: list[list[Any]] = []
    read, saved = 3, 0
    for _ in range(depth):
        before, out, shape = read * side * side, channels * side * side, [channels, side, side]
        layers.append(["Conv2d", out, 9 * read * channels, [3, 3], 1, False, before, shape, [1, 1]])
        layers.append(["BatchNorm2d", out, 2 * channels, None, None, False, out, shape, None])
        layers.append(["ReLU", out, 0, None, None, True, out, shape, None])
        saved += 4 * (before + 2 * out)
        read = channels
    layers.append(["Linear", 10, channels * 10 + 10, None, None, False, channels, [10], None])
    return {
        "id": f"timm/{group}-{channels}-{side}-{depth}", "family": "cnn", "group": group,
        "input_shape": [3, side, side], "parameters": sum(layer[2] for layer in layers), "buffers": 4 * channels,
        "saved_bytes_per_sample": saved, "largest_saved_bytes_per_sample": 4 * channels * side * side, "layers": layers,
    }  # fmt: skip
