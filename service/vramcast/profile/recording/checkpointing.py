"""Gradient checkpointing, switched on the way each library does it."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def enable_checkpointing(model: nn.Module, units: tuple[nn.Module, ...], *, reentrant: bool) -> None:
    """By the network's own switch (transformers, diffusers, timm), or else around its repeated blocks."""
    network: Any = model
    if getattr(network, "supports_gradient_checkpointing", False):
        network.gradient_checkpointing_enable({"use_reentrant": reentrant})
    elif getattr(network, "_supports_gradient_checkpointing", False):
        network.enable_gradient_checkpointing(functools.partial(checkpoint, use_reentrant=reentrant))
    elif hasattr(network, "set_grad_checkpointing"):
        network.set_grad_checkpointing(True)
    else:
        _wrap(model, set(units), reentrant=reentrant)


class Checkpointed(nn.Module):
    """A block that backward computes again. Other attributes are the block's own."""

    def __init__(self, block: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.block = block
        self._reentrant = reentrant

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(functools.partial(self.block, **kwargs), *args, use_reentrant=self._reentrant)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("block"), name)


def _wrap(model: nn.Module, units: set[nn.Module], *, reentrant: bool) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in units:
                setattr(parent, name, Checkpointed(child, reentrant=reentrant))
