"""Mixtures of experts with the experts as separate linear layers, which is how quantized ones run.

transformers computes all experts in one grouped product, whose sizes do not depend on the routes, so it is recorded as
it is. A quantized expert is unpacked on its own, with the tokens that were routed to it: evenly, for want of values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class EvenExperts(nn.Module):
    """Takes and returns what transformers' experts do."""

    def __init__(self, count: int, width: int, inner: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.experts = nn.ModuleList([_Expert(width, inner, dtype) for _ in range(count)])

    def forward(self, hidden: Tensor, routes: Tensor, weights: Tensor) -> Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1])
        result = torch.zeros_like(rows)
        share = -(-routes.numel() // len(self.experts))
        for expert in self.experts:
            taken = torch.zeros(share, dtype=torch.long, device=rows.device)
            made = expert(rows[taken]) * weights.reshape(-1, routes.shape[-1])[taken, 0, None]
            result.index_add_(0, taken, made.to(rows.dtype))
        return result.view_as(hidden)


class _Expert(nn.Module):
    def __init__(self, width: int, inner: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False, dtype=dtype)
        self.up_proj = nn.Linear(width, inner, bias=False, dtype=dtype)
        self.down_proj = nn.Linear(inner, width, bias=False, dtype=dtype)

    def forward(self, rows: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(rows)) * self.up_proj(rows))  # type: ignore[no-any-return]


def separate_experts(model: nn.Module) -> None:
    """Splits experts that are stored as one tensor."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if _is_grouped(child):
                setattr(parent, name, _separated(child))


def _is_grouped(module: Any) -> bool:
    weights = (getattr(module, name, None) for name in ("gate_up_proj", "down_proj"))
    return all(isinstance(weight, nn.Parameter) and weight.dim() == 3 for weight in weights)


def _separated(experts: Any) -> EvenExperts:
    """Libraries store the projections either way round; gate and up lie in one tensor."""
    count, *sides = experts.gate_up_proj.shape
    down = sorted(experts.down_proj.shape[1:])
    inner = next(side for side in down if sorted((2 * side, sum(down) - side)) == sorted(sides))
    return EvenExperts(count, sum(down) - inner, inner, experts.gate_up_proj.dtype)
