"""The loss of a network that comes without one, by the shape of what it returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from vramcast.profile.recording.errors import Unrecordable

# What a class predicts: samples x classes, and for segmentation one such row per pixel.
_ROWS = 2
_PIXELS = 4


def loss_of(outputs: Any) -> Tensor:
    """The network's own loss if it returns one; else the usual one for its outputs."""
    own = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
    if isinstance(own, Tensor):
        return own
    if isinstance(outputs, dict) and outputs and all(_is_loss(value) for value in outputs.values()):
        return torch.stack(list(outputs.values())).sum()  # as torchvision's detectors return them
    predicted = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not predicted:
        raise Unrecordable(
            "the network returns nothing that a loss could depend on: train at least one parameter, return the loss "
            "from forward, or give the whole loop (a function that returns model, optimizer and step)"
        )
    return _usual(predicted[0])


def _is_loss(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0


def _usual(predicted: Tensor) -> Tensor:
    """Cross entropy for classes and for pixels; the squared error for everything else, as diffusion models have it."""
    if predicted.dim() == _ROWS and predicted.shape[1] > 1:
        labels = torch.zeros(len(predicted), dtype=torch.long, device=predicted.device)
        return functional.cross_entropy(predicted.float(), labels)
    if predicted.dim() == _PIXELS and predicted.shape[1] > 1:
        labels = torch.zeros(len(predicted), *predicted.shape[2:], dtype=torch.long, device=predicted.device)
        return functional.cross_entropy(predicted.float(), labels)
    return functional.mse_loss(predicted.float(), torch.zeros_like(predicted, dtype=torch.float32))
