"""Gradient checkpointing, switched on the way each library does it."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def enable_checkpointing(model: nn.Module, units: tuple[nn.Module, ...], *, reentrant: bool) -> None:
    """By the network's own switch (transformers, diffusers, timm), or else around its repeated blocks.

    `reentrant` is for transformers, whose default it was until version 5. No other library has that default.
    """
    network: Any = model
    if getattr(network, "supports_gradient_checkpointing", False):
        network.gradient_checkpointing_enable({"use_reentrant": reentrant})
    elif getattr(network, "_supports_gradient_checkpointing", False):
        network.enable_gradient_checkpointing(functools.partial(checkpoint, use_reentrant=False))
    elif hasattr(network, "set_grad_checkpointing"):
        network.set_grad_checkpointing(True)
    else:
        _wrap(model, set(units))


class Checkpointed(nn.Module):
    """A block that backward computes again. Other attributes are the block's own."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(functools.partial(self.block, **kwargs), *args, use_reentrant=False)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("block"), name)


def _wrap(model: nn.Module, units: set[nn.Module]) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in units:
                setattr(parent, name, Checkpointed(child))
