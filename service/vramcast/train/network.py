"""The network: a BiGRU over the layer tokens, then a Transformer encoder, joined with the facts; it outputs quantiles.

The order is that of the papers: the recurrent part relates neighbouring layers, attention relates distant ones. The
network is small on purpose: with a few thousand measured rows, a wider one memorizes rows instead of getting more
accurate (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vramcast.forecast.description import OpKind
from vramcast.forecast.features import FACTS, TOKEN_WIDTH, Regime

QUANTILES = (0.05, 0.5, 0.9, 0.95, 0.99)
MEDIAN = QUANTILES.index(0.5)
UTILIZATIONS = 3
CLIP = 4.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes; `recurrent` and `attention` can be switched off for ablations."""

    width: int = 32
    recurrent_width: int = 16  # per direction
    heads: int = 4
    layers: int = 1
    facts_width: int = 64
    dropout: float = 0.1
    recurrent: bool = True
    attention: bool = True


class Encoder(nn.Module):
    """One pre-norm Transformer layer, written out so that it exports as plain operators."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        batch, tokens, width = x.shape  # (rows, tokens, width)
        qkv = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (rows, heads, tokens, width / heads)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        mixed = mixed.transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.dropout(self.out(mixed))
        return x + self.dropout(self.feed(self.norm2(x)))


class LayerReader(nn.Module):
    """A BiGRU over the layer tokens, and then encoders that the network names. A network derives from it, so that its
    weights keep their names."""

    def __init__(self, width: int, recurrent_width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(TOKEN_WIDTH, width)
        self.kind = nn.Embedding(len(OpKind) + 1, width)
        self.gru = nn.GRU(width, recurrent_width, batch_first=True, bidirectional=True)
        self.join = nn.Linear(2 * recurrent_width, width)

    def read(
        self, tokens: Tensor, kinds: Tensor, encoders: Iterable[nn.Module], *, recurrent: bool
    ) -> tuple[Tensor, Tensor]:
        """The mean and the largest over the layers, each (rows, width); zero where there are none."""
        present = (kinds > 0).to(tokens.dtype).unsqueeze(-1)  # (rows, tokens, 1)
        x = (self.embed(tokens) + self.kind(kinds)) * present
        if recurrent:
            x = (x + self.join(self.gru(x)[0])) * present
        bias = ((present.transpose(1, 2).unsqueeze(1) - 1.0) * 1e4).expand(-1, 1, x.shape[1], -1)
        for encoder in encoders:
            x = encoder(x, bias)
        mean = (x * present).sum(1) / present.sum(1).clamp_min(1.0)
        most = (x * present - (1.0 - present) * 1e4).amax(1) * (present.sum(1) > 0).to(x.dtype)
        return mean, most


class ForecastNetwork(LayerReader):
    """Facts, tokens and kinds in; quantiles of log(measured / prior), utilization and the hidden state out."""

    mean: Tensor
    scale: Tensor
    regime_scale: Tensor

    def __init__(self, shape: Shape) -> None:
        width = shape.width
        super().__init__(width, shape.recurrent_width)
        self.shape = shape
        self.register_buffer("mean", torch.zeros(len(FACTS)))
        self.register_buffer("scale", torch.ones(len(FACTS)))
        self.register_buffer("regime_scale", torch.ones(len(Regime)))
        self.encoders = nn.ModuleList(Encoder(width, shape.heads, shape.dropout) for _ in range(shape.layers))
        self.facts = nn.Sequential(
            nn.Linear(len(FACTS), shape.facts_width), nn.SiLU(), nn.Dropout(shape.dropout),
            nn.Linear(shape.facts_width, shape.facts_width), nn.SiLU(),
        )  # fmt: skip
        self.trunk = nn.Sequential(
            nn.Dropout(shape.dropout), nn.Linear(2 * width + shape.facts_width, shape.facts_width), nn.SiLU(),
            nn.Dropout(shape.dropout),
        )  # fmt: skip
        self.memory = nn.Linear(shape.facts_width, len(Regime) * len(QUANTILES))
        self.utilization = nn.Linear(shape.facts_width, UTILIZATIONS)
        nn.init.zeros_(self.memory.weight)
        nn.init.zeros_(self.memory.bias)

    def standardize(self, facts: Tensor, regimes: Tensor, targets: Tensor) -> None:
        """Takes the scales from the training rows."""
        self.mean.copy_(facts.mean(0))
        self.scale.copy_(facts.std(0).clamp_min(1e-6))
        for regime in range(len(Regime)):
            of_regime = targets[regimes == regime]
            if of_regime.numel() > 10:
                spread = (of_regime - of_regime.median()).abs().mean().clamp_min(1e-3)
                self.regime_scale[regime] = spread

    def forward(self, facts: Tensor, tokens: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = self.state(facts, tokens, kinds)
        regimes = facts[:, : len(Regime)]  # one-hot
        raw = self.memory(state).reshape(-1, len(Regime), len(QUANTILES))
        raw = (raw * (regimes * self.regime_scale).unsqueeze(-1)).sum(1)  # (rows, quantiles)
        step = (regimes * self.regime_scale).sum(1, keepdim=True)
        return ordered(raw, step), torch.sigmoid(self.utilization(state)), state

    def state(self, facts: Tensor, tokens: Tensor, kinds: Tensor) -> Tensor:
        standard = torch.clamp((facts - self.mean) / self.scale, -CLIP, CLIP)
        encoders = self.encoders if self.shape.attention else ()
        mean, most = self.read(tokens, kinds, encoders, recurrent=self.shape.recurrent)
        return torch.as_tensor(self.trunk(torch.cat([mean, most, self.facts(standard)], dim=1)))


def ordered(raw: Tensor, step: Tensor) -> Tensor:
    """Quantiles along the last axis that never cross: the median, and positive steps away from it."""
    median = raw[..., MEDIAN : MEDIAN + 1]
    below = median - nn.functional.softplus(raw[..., :MEDIAN] / step) * step
    above = median + torch.cumsum(nn.functional.softplus(raw[..., MEDIAN + 1 :] / step) * step * 0.5, dim=-1)
    return torch.cat([below, median, above], dim=-1)


def pinball(predicted: Tensor, target: Tensor, censored: Tensor) -> Tensor:
    """Per row, summed over the quantiles. A censored target is a lower limit: predictions above it cost nothing."""
    taus = predicted.new_tensor(QUANTILES)
    miss = target.unsqueeze(1) - predicted  # (rows, quantiles)
    loss = torch.maximum(taus * miss, (taus - 1.0) * miss)
    loss = torch.where(censored.unsqueeze(1) & (miss < 0), torch.zeros_like(loss), loss)
    weights = predicted.new_tensor([2.0 if tau == QUANTILES[MEDIAN] else 0.5 for tau in QUANTILES])
    return (loss * weights).sum(1)
