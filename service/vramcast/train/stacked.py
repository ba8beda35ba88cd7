"""The ensemble as one network with stacked weights, so that five members cost little more than one.

Forecasts are made one row at a time, so the cost is the number of operators, not the arithmetic. The members' weights
are stacked along a first axis and multiplied at once. Pairs of GRUs become one GRU with block-diagonal weights. Every
shape has at most one -1, so the graph contains no arithmetic on shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from vramcast.forecast.features import TOKENS, Regime
from vramcast.train.network import CLIP, QUANTILES, Encoder, ForecastNetwork, ordered

_GATES = 3
# GRUs per operator: a pair's off-diagonal zeros cost less than another operator, those of ten cost more.
_GRUS_TOGETHER = 2


class _Linear(nn.Module):
    """(members, rows, in) or (1, rows, in) to (members, rows, out); a preceding norm is folded in."""

    def __init__(self, linears: Sequence[nn.Linear], norms: Sequence[nn.LayerNorm] | None = None) -> None:
        super().__init__()
        weight = torch.stack([linear.weight.detach().T for linear in linears])  # (members, in, out)
        bias = torch.stack([linear.bias.detach()[None] for linear in linears])  # (members, 1, out)
        if norms is not None:
            bias = bias + torch.stack([norm.bias.detach()[None] for norm in norms]) @ weight
            weight = torch.stack([norm.weight.detach()[:, None] for norm in norms]) * weight
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, cast(Tensor, self.weight)) + cast(Tensor, self.bias)


class _Encoder(nn.Module):
    def __init__(self, encoders: Sequence[Encoder]) -> None:
        super().__init__()
        self.members, self.heads = len(encoders), encoders[0].heads
        self.width = encoders[0].out.out_features
        self.qkv = _Linear([e.qkv for e in encoders], [e.norm1 for e in encoders])
        self.out = _Linear([e.out for e in encoders])
        self.widen = _Linear([_nth(e.feed, 0) for e in encoders], [e.norm2 for e in encoders])
        self.narrow = _Linear([_nth(e.feed, 3) for e in encoders])

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """(members, rows * tokens, width); `bias` is (rows, 1, 1, tokens)."""
        head_width = self.width // self.heads
        qkv = self.qkv(nn.functional.layer_norm(x, (self.width,)))
        qkv = qkv.reshape(self.members, -1, TOKENS, 3 * self.heads, head_width).transpose(2, 3)
        q, k, v = qkv.split(self.heads, dim=2)  # each (members, rows, heads, tokens, head width)
        weights = torch.softmax(q @ k.transpose(-1, -2) * head_width**-0.5 + bias, dim=-1)
        mixed = (weights @ v).transpose(2, 3).reshape(self.members, -1, self.width)
        x = x + self.out(mixed)
        return x + self.narrow(nn.functional.gelu(self.widen(nn.functional.layer_norm(x, (self.width,)))))


class Stacked(nn.Module):
    """Equals the mean of the networks."""

    def __init__(self, networks: Sequence[ForecastNetwork]) -> None:
        super().__init__()
        self.shape, self.members = networks[0].shape, len(networks)
        for name in ("mean", "scale", "regime_scale"):
            self.register_buffer(name, torch.stack([getattr(network, name)[None] for network in networks]))
        self.register_buffer("kind", torch.stack([network.kind.weight.detach() for network in networks]))
        self.embed, self.join = _each(networks, lambda n: n.embed), _each(networks, lambda n: n.join)
        grus = [network.gru for network in networks]
        self.grus = nn.ModuleList(
            _block_gru(grus[at : at + _GRUS_TOGETHER]) for at in range(0, len(grus), _GRUS_TOGETHER)
        )
        self.encoders = nn.ModuleList(_Encoder(layer) for layer in zip(*(n.encoders for n in networks), strict=True))
        self.facts1 = _each(networks, lambda n: _nth(n.facts, 0))
        self.facts2 = _each(networks, lambda n: _nth(n.facts, 3))
        self.trunk = _each(networks, lambda n: _nth(n.trunk, 1))
        self.memory, self.utilization = _each(networks, lambda n: n.memory), _each(networks, lambda n: n.utilization)

    def forward(self, facts: Tensor, tokens: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        state = self._state(facts, tokens, kinds)  # (members, rows, width)
        scales = facts[None, :, : len(Regime)] * cast(Tensor, self.regime_scale)  # (members, rows, regimes)
        raw = self.memory(state).reshape(self.members, -1, len(Regime), len(QUANTILES))
        raw = (raw * scales.unsqueeze(-1)).sum(2)
        quantiles = ordered(raw, scales.sum(2, keepdim=True))
        return quantiles.mean(0), torch.sigmoid(self.utilization(state)).mean(0)

    def _state(self, facts: Tensor, tokens: Tensor, kinds: Tensor) -> Tensor:
        standard = torch.clamp((facts[None] - cast(Tensor, self.mean)) / cast(Tensor, self.scale), -CLIP, CLIP)
        known = nn.functional.silu(self.facts2(nn.functional.silu(self.facts1(standard))))
        present = (kinds > 0).to(tokens.dtype)  # (rows, tokens)
        x = self._read(tokens, kinds, present.reshape(1, -1, 1))
        x = x.reshape(self.members, -1, TOKENS, self.shape.width)
        held = present.unsqueeze(-1)  # (rows, tokens, 1)
        count = held.sum(1)
        mean = (x * held).sum(2) / count.clamp_min(1.0)
        most = (x * held - (1.0 - held) * 1e4).amax(2) * (count > 0).to(x.dtype)
        return nn.functional.silu(self.trunk(torch.cat([mean, most, known], dim=2)))

    def _read(self, tokens: Tensor, kinds: Tensor, present: Tensor) -> Tensor:
        """(members, rows * tokens, width)"""
        width, members = self.shape.width, self.members
        embedded = self.embed(tokens.reshape(1, -1, tokens.shape[2]))
        x = (embedded + cast(Tensor, self.kind).index_select(1, kinds.reshape(-1))) * present
        if self.shape.recurrent:
            together = x.reshape(members, -1, TOKENS, width).permute(1, 2, 0, 3).reshape(-1, TOKENS, members * width)
            grus = [cast(nn.GRU, gru) for gru in self.grus]
            parts = together.split([gru.input_size for gru in grus], dim=2)
            reads = [self._run_gru(gru, part) for gru, part in zip(grus, parts, strict=True)]
            read = torch.cat(reads, dim=3).permute(3, 0, 1, 2, 4).reshape(members, -1, 2 * self.shape.recurrent_width)
            x = (x + self.join(read)) * present
        if self.shape.attention:
            bias = (present.reshape(-1, 1, 1, TOKENS) - 1.0) * 1e4
            for encoder in self.encoders:
                x = encoder(x, bias)
        return x

    def _run_gru(self, gru: nn.GRU, together: Tensor) -> Tensor:
        """(rows, tokens, directions, members, width)"""
        members = gru.hidden_size // self.shape.recurrent_width
        return gru(together)[0].reshape(-1, TOKENS, 2, members, self.shape.recurrent_width)


def _each(networks: Sequence[ForecastNetwork], part: Callable[[ForecastNetwork], nn.Linear]) -> _Linear:
    return _Linear([part(network) for network in networks])


def _nth(parts: nn.Sequential, index: int) -> nn.Linear:
    return cast(nn.Linear, parts[index])


def _block_gru(grus: Sequence[nn.GRU]) -> nn.GRU:
    """One GRU whose gates are the members' gates, concatenated."""
    members, hidden, width = len(grus), grus[0].hidden_size, grus[0].input_size
    stacked = nn.GRU(members * width, members * hidden, batch_first=True, bidirectional=True)
    with torch.no_grad():
        for name, parameter in stacked.named_parameters():
            parts = [getattr(gru, name).reshape(_GATES, hidden, -1) for gru in grus]  # (gates, hidden, in or 1)
            if name.startswith("bias"):
                parameter.copy_(torch.cat(parts, dim=1).reshape(-1))
            else:
                gates = [torch.block_diag(*(part[gate] for part in parts)) for gate in range(_GATES)]
                parameter.copy_(torch.cat(gates))
    return stacked
