"""Kernels that libraries such as Liger and Unsloth put in place of transformers' own: what they keep and write over.

RMS norms keep their input and one number a row, rotary embeddings and gradients are written in place, and the loss
writes its gradient over the logits, or never has the logits of all tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vramcast.profile.recording.patching import patched
from vramcast.task.vocabulary import Kernels


@contextmanager
def fused_functions(model: nn.Module, kernels: Kernels) -> Iterator[None]:
    """Functions that fused kernels replace, while the network runs."""
    with patched(_patches(model) if kernels is not Kernels.NONE else []):
        yield


def fuse_modules(model: nn.Module, *, activations: bool) -> None:
    """Modules that fused kernels replace."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm") and isinstance(getattr(child, "weight", None), nn.Parameter):
                setattr(parent, name, FusedNorm(child))
        if activations and _is_gated(parent):
            parent.forward = _gated_forward(parent)


class FusedNorm(nn.Module):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight = norm.weight

    def forward(self, given: Tensor) -> Tensor:
        return _Norm.apply(given, self.weight)  # type: ignore[no-any-return]


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor) -> Tensor:
        scales = torch.empty(given.shape[:-1], dtype=torch.float32, device=given.device)
        ctx.save_for_backward(given, weight, scales)
        return torch.empty_like(given)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The input's gradient is written over the output's."""
        weight = ctx.saved_tensors[1]
        return gradients[0], torch.empty_like(weight) if ctx.needs_input_grad[1] else None


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, given: Tensor) -> Tensor:
        return given.view_as(given)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0]


def _rotate(query: Tensor, key: Tensor, _cosines: Tensor, _sines: Tensor, *_args: Any, **_named: Any) -> Any:
    return _Rotation.apply(query), _Rotation.apply(key)


class _Gate(torch.autograd.Function):
    """silu(gate) * up. Backward computes it again and writes both gradients over the inputs."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> Any:
        return ctx.saved_tensors


def _is_gated(module: nn.Module) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Module) for name in ("gate_proj", "up_proj", "down_proj"))


def _gated_forward(module: Any) -> Any:
    def forward(given: Tensor) -> Tensor:
        return module.down_proj(_Gate.apply(module.gate_proj(given), module.up_proj(given)))  # type: ignore[no-any-return]

    return forward


class _CrossEntropy(torch.autograd.Function):
    """Keeps the logits and one number a row; the gradient is written over the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        losses = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
        sums = torch.empty_like(losses)
        ctx.save_for_backward(logits, sums)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> Any:
        return ctx.saved_tensors[0]


def _patches(model: nn.Module) -> list[tuple[Any, str, Any]]:
    original = functional.cross_entropy

    def cross_entropy(given: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if given.dim() != 2 or target.dim() != 1:
            return original(given, target, *args, **kwargs)
        return _CrossEntropy.apply(given) / target.shape[0]  # type: ignore[no-any-return]

    modules = {sys.modules[type(module).__module__] for module in model.modules()}
    rotary = [
        (module, "apply_rotary_pos_emb", _rotate) for module in modules if hasattr(module, "apply_rotary_pos_emb")
    ]
    return [(functional, "cross_entropy", cross_entropy), *rotary]


class _ChunkedLoss(torch.autograd.Function):
    """Liger's linear layer and loss in one: logits of a chunk of tokens at a time, gradients already in forward.

    Liger cuts the tokens into as many chunks as the vocabulary is wider than the hidden state, and rounds a chunk up
    to a power of two. So the logits of a chunk have at most twice as many elements as all hidden states, whatever the
    vocabulary is, and one chunk's memory serves the next. Written so, every size is a polynomial in the batch and the
    length, and one recording answers all of them.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        tokens, width = hidden.shape
        gradient = torch.zeros_like(hidden)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = torch.zeros(tokens, dtype=torch.float32, device=hidden.device)
        logits = hidden.new_empty(2 * tokens, width)
        del logits
        ctx.save_for_backward(gradient, of_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> Any:
        return ctx.saved_tensors


def has_head(model: Any) -> bool:
    return hasattr(model, "lm_head") and hasattr(model, "get_decoder")


def chunked_loss(model: Any, batch: dict[str, Any] | tuple[Sequence[Any], dict[str, Any]]) -> Tensor:
    """A causal language model's loss without the logits of all tokens. A batch is what `forward` gets."""
    args, named = ((), batch) if isinstance(batch, dict) else batch
    given = {name: value for name, value in named.items() if name != "labels"}
    hidden: Tensor = model.get_decoder()(*args, **given)[0]
    hidden = hidden[..., :-1, :].contiguous()
    return _ChunkedLoss.apply(hidden.view(-1, hidden.shape[-1]), model.lm_head.weight)  # type: ignore[no-any-return]
