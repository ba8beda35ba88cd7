"""The network that forecasts step times: a BiGRU over the layer tokens, then a Transformer encoder, joined with the
facts. It outputs quantiles of log(measured / roofline)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vramcast.forecast.description import OpKind
from vramcast.forecast.speed_artifact import QUANTILES
from vramcast.forecast.speed_features import FACTS, TOKEN_WIDTH
from vramcast.train.network import CLIP, Encoder

_MEDIAN = QUANTILES.index(0.5)
_CLIP_NORM = 1.0
_WARM_UP_STEPS = 40


@dataclass(frozen=True, slots=True)
class SpeedShape:
    width: int = 32
    recurrent_width: int = 16  # per direction
    heads: int = 4
    facts_width: int = 64
    dropout: float = 0.15


@dataclass(frozen=True, slots=True)
class SpeedSchedule:
    epochs: int = 15
    batch: int = 128
    rows_per_epoch: int = 2048
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    fact_dropout: float = 0.1
    average: float = 0.98


@dataclass(frozen=True, slots=True)
class SpeedArrays:
    """One row per run."""

    facts: NDArray[np.float32]  # (rows, facts)
    tokens: NDArray[np.float32]  # (rows, tokens, width)
    kinds: NDArray[np.int64]  # (rows, tokens)
    target: NDArray[np.float32]  # log(measured / roofline)
    weight: NDArray[np.float32]

    def where(self, rows: NDArray[np.bool_]) -> SpeedArrays:
        return SpeedArrays(self.facts[rows], self.tokens[rows], self.kinds[rows], self.target[rows], self.weight[rows])


class SpeedNetwork(nn.Module):
    mean: Tensor
    scale: Tensor
    middle: Tensor

    def __init__(self, shape: SpeedShape) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(len(FACTS)))
        self.register_buffer("scale", torch.ones(len(FACTS)))
        self.register_buffer("middle", torch.zeros(1))
        width = shape.width
        self.embed = nn.Linear(TOKEN_WIDTH, width)
        self.kind = nn.Embedding(len(OpKind) + 1, width)
        self.gru = nn.GRU(width, shape.recurrent_width, batch_first=True, bidirectional=True)
        self.join = nn.Linear(2 * shape.recurrent_width, width)
        self.encoder = Encoder(width, shape.heads, shape.dropout)
        self.facts = nn.Sequential(
            nn.Linear(len(FACTS), shape.facts_width), nn.SiLU(), nn.Dropout(shape.dropout),
            nn.Linear(shape.facts_width, shape.facts_width), nn.SiLU(),
        )  # fmt: skip
        self.trunk = nn.Sequential(
            nn.Dropout(shape.dropout), nn.Linear(2 * width + shape.facts_width, shape.facts_width), nn.SiLU(),
            nn.Dropout(shape.dropout), nn.Linear(shape.facts_width, len(QUANTILES)),
        )  # fmt: skip

    def standardize(self, facts: Tensor, targets: Tensor) -> None:
        self.mean.copy_(facts.mean(0))
        self.scale.copy_(facts.std(0).clamp_min(1e-3))
        self.middle.copy_(targets.median().reshape(1))

    def forward(self, facts: Tensor, tokens: Tensor, kinds: Tensor) -> Tensor:
        standard = torch.clamp((facts - self.mean) / self.scale, -CLIP, CLIP)
        present = (kinds > 0).to(tokens.dtype).unsqueeze(-1)  # (rows, tokens, 1)
        x = (self.embed(tokens) + self.kind(kinds)) * present
        x = (x + self.join(self.gru(x)[0])) * present
        bias = ((present.transpose(1, 2).unsqueeze(1) - 1.0) * 1e4).expand(-1, 1, x.shape[1], -1)
        x = self.encoder(x, bias)
        mean = (x * present).sum(1) / present.sum(1).clamp_min(1.0)
        most = (x * present - (1.0 - present) * 1e4).amax(1)
        raw = self.trunk(torch.cat([mean, most, self.facts(standard)], dim=1))
        median = raw[:, _MEDIAN : _MEDIAN + 1] + self.middle
        below = median - nn.functional.softplus(raw[:, :_MEDIAN])
        above = median + nn.functional.softplus(raw[:, _MEDIAN + 1 :])
        return torch.cat([below, median, above], dim=1)


class Mean(nn.Module):
    """Of several networks."""

    def __init__(self, networks: Sequence[SpeedNetwork]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, facts: Tensor, tokens: Tensor, kinds: Tensor) -> Tensor:
        return torch.stack([network(facts, tokens, kinds) for network in self.networks]).mean(0)


def fit_network(data: SpeedArrays, shape: SpeedShape, schedule: SpeedSchedule, seed: int) -> SpeedNetwork:
    """Deterministic by seed. Returns the averaged weights."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    facts, tokens, kinds, target = map(torch.as_tensor, (data.facts, data.tokens, data.kinds, data.target))
    network = SpeedNetwork(shape)
    network.standardize(facts, target)
    averaged = copy.deepcopy(network).eval()
    optimizer = torch.optim.AdamW(network.parameters(), schedule.learning_rate, weight_decay=schedule.weight_decay)
    chance = data.weight / data.weight.sum()
    size = min(schedule.rows_per_epoch, len(chance))
    steps, done = schedule.epochs * max(1, size // schedule.batch), 0
    network.train()
    for _ in range(schedule.epochs):
        drawn = rng.choice(len(chance), size, replace=False, p=chance)
        for low in range(0, max(1, size - schedule.batch + 1), schedule.batch):
            rows = torch.as_tensor(drawn[low : low + schedule.batch])
            rate = 0.5 * (1.0 + math.cos(math.pi * done / steps)) * min(1.0, (done + 1) / _WARM_UP_STEPS)
            for group in optimizer.param_groups:
                group["lr"] = schedule.learning_rate * rate + 1e-5
            given = facts[rows]
            dropped = torch.rand(given.shape) < schedule.fact_dropout
            given = torch.where(dropped, network.mean.expand_as(given), given)
            loss = _pinball(network(given, tokens[rows], kinds[rows]), target[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
            torch.nn.utils.clip_grad_norm_(network.parameters(), _CLIP_NORM)
            optimizer.step()
            done += 1
            _average(averaged, network, min(schedule.average, done / (done + 20)))
    return averaged


@torch.no_grad()  # type: ignore[untyped-decorator]
def _average(averaged: SpeedNetwork, network: SpeedNetwork, decay: float) -> None:
    for kept, fresh in zip(averaged.parameters(), network.parameters(), strict=True):
        kept.lerp_(fresh, 1.0 - decay)


def _pinball(predicted: Tensor, target: Tensor) -> Tensor:
    levels = predicted.new_tensor(QUANTILES)
    miss = target.unsqueeze(1) - predicted
    weights = predicted.new_tensor([2.0 if level == 0.5 else 0.5 for level in QUANTILES])
    return (torch.maximum(levels * miss, (levels - 1.0) * miss) * weights).sum(1).mean()


@torch.no_grad()  # type: ignore[untyped-decorator]
def predict(networks: Sequence[SpeedNetwork], data: SpeedArrays) -> NDArray[np.float32]:
    """(rows, quantiles)."""
    result = Mean(networks).eval()(*map(torch.as_tensor, (data.facts, data.tokens, data.kinds)))
    return np.asarray(result.numpy(), np.float32)
