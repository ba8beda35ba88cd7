"""The network of totals: a BiGRU over the layer tokens, then a Transformer encoder, joined with the facts.

It tells three factors for each counter: of the floor, of where the line begins and of how steep it is
(`forecast/totals_features.py`). What it is judged by is the memory that they add up to, at every batch of a job.
"""

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
from vramcast.forecast.features import TOKEN_WIDTH
from vramcast.forecast.totals_features import FACTS
from vramcast.forecast.totals_model import FACTORS, MOST_FACTOR
from vramcast.train.network import CLIP, Encoder
from vramcast.train.simulated_data import LEVELS, Floats, Simulated, Tokens

COUNTERS = 2  # tensors, and what is reserved for them
_CLIP_NORM = 1.0
_WARM_UP_STEPS = 60
_GIB = float(1 << 30)


@dataclass(frozen=True, slots=True)
class TotalsShape:
    """`recurrent` and `attention` can be switched off for ablations."""

    width: int = 32
    recurrent_width: int = 16  # per direction
    heads: int = 4
    facts_width: int = 64
    dropout: float = 0.0
    recurrent: bool = True
    attention: bool = True


@dataclass(frozen=True, slots=True)
class TotalsSchedule:
    steps: int = 1500
    batch: int = 128
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    average: float = 0.995
    layers_share: float = 0.25  # of the rows; the rest are summaries of all kinds


class TotalsNetwork(nn.Module):
    mean: Tensor
    scale: Tensor

    def __init__(self, shape: TotalsShape) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("mean", torch.zeros(len(FACTS)))
        self.register_buffer("scale", torch.ones(len(FACTS)))
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
            nn.Dropout(shape.dropout), nn.Linear(shape.facts_width, COUNTERS * FACTORS),
        )  # fmt: skip

    def standardize(self, facts: Tensor) -> None:
        self.mean.copy_(facts.mean(0))
        self.scale.copy_(facts.std(0).clamp_min(1e-2))

    def forward(self, facts: Tensor, tokens: Tensor, kinds: Tensor) -> Tensor:
        """(rows, counters, factors), in logarithms."""
        return self._factors(facts, self._layers(tokens, kinds))

    def train_forward(self, facts: Tensor, tokens: Tensor, kinds: Tensor) -> Tensor:
        """The same; layers are only read where there are any, which is most of the work."""
        told = torch.nonzero(kinds[:, 0] > 0)[:, 0]
        layers = facts.new_zeros(len(facts), 2 * self.shape.width)
        if len(told):
            layers = layers.index_copy(0, told, self._layers(tokens[told], kinds[told]))
        return self._factors(facts, layers)

    def _layers(self, tokens: Tensor, kinds: Tensor) -> Tensor:
        """(rows, 2 * width): zero where there are no tokens."""
        present = (kinds > 0).to(tokens.dtype).unsqueeze(-1)  # (rows, tokens, 1)
        x = (self.embed(tokens) + self.kind(kinds)) * present
        if self.shape.recurrent:
            x = (x + self.join(self.gru(x)[0])) * present
        if self.shape.attention:
            bias = ((present.transpose(1, 2).unsqueeze(1) - 1.0) * 1e4).expand(-1, 1, x.shape[1], -1)
            x = self.encoder(x, bias)
        mean = (x * present).sum(1) / present.sum(1).clamp_min(1.0)
        most = (x * present - (1.0 - present) * 1e4).amax(1) * (present.sum(1) > 0).to(x.dtype)
        return torch.cat([mean, most], dim=1)

    def _factors(self, facts: Tensor, layers: Tensor) -> Tensor:
        standard = torch.clamp((facts - self.mean) / self.scale, -CLIP, CLIP)
        raw = self.trunk(torch.cat([layers, self.facts(standard)], dim=1))
        return torch.clamp(raw.reshape(-1, COUNTERS, FACTORS), -MOST_FACTOR, MOST_FACTOR)


class MeanFactors(nn.Module):
    """Of several networks."""

    def __init__(self, networks: Sequence[TotalsNetwork]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, facts: Tensor, tokens: Tensor, kinds: Tensor) -> Tensor:
        return torch.stack([network(facts, tokens, kinds) for network in self.networks]).mean(0)


@dataclass(frozen=True, slots=True)
class _Tensors:
    facts: Tensor  # (rows, LEVELS, facts)
    network: Tensor
    tokens: Tensor
    kinds: Tensor
    held: Tensor
    unit: Tensor
    units: Tensor
    target: Tensor  # (rows, counters, batches), logarithms of GiB
    there: Tensor


def _tensors(data: Simulated, tokens: Tokens) -> _Tensors:
    def tensor(values: NDArray[np.floating]) -> Tensor:
        return torch.as_tensor(np.asarray(values, np.float32))

    both = np.stack([data.active_bytes, data.reserved_bytes], axis=1) / _GIB
    return _Tensors(
        tensor(data.facts), torch.as_tensor(data.network), tensor(tokens.tokens), torch.as_tensor(tokens.kinds),
        tensor(data.held_bytes / _GIB), tensor(data.unit_bytes / _GIB * 1e6), tensor(data.units / 1e6),
        tensor(np.log(np.maximum(both, 1e-9))), torch.as_tensor(data.units > 0),
    )  # fmt: skip


def memory(factors: Tensor, held: Tensor, unit: Tensor, units: Tensor) -> Tensor:
    """(rows, counters, batches) logarithms of GiB: the floor or the line, whichever is higher."""
    floor, start, slope = (torch.exp(factors[..., at]).unsqueeze(-1) for at in range(FACTORS))
    line = start * held[:, None, None] + slope * (unit[:, None] * units).unsqueeze(1)
    return torch.log(torch.maximum(floor * held[:, None, None], line).clamp_min(1e-9))


def fit_network(
    data: Simulated, tokens: Tokens, weight: Floats, shape: TotalsShape, schedule: TotalsSchedule, seed: int,
    start: TotalsNetwork | None = None,
) -> TotalsNetwork:  # fmt: skip
    """Deterministic by seed. `start`: a network to go on from. Returns the averaged weights."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    given = _tensors(data, tokens)
    network = TotalsNetwork(shape) if start is None else copy.deepcopy(start)
    if start is None:
        network.standardize(given.facts.flatten(0, 1))
    averaged = copy.deepcopy(network).eval()
    optimizer = torch.optim.AdamW(network.parameters(), schedule.learning_rate, weight_decay=schedule.weight_decay)
    chance = weight / weight.sum()
    network.train()
    for done in range(schedule.steps):
        rate = 0.5 * (1.0 + math.cos(math.pi * done / schedule.steps)) * min(1.0, (done + 1) / _WARM_UP_STEPS)
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate * rate + 1e-5
        rows = torch.as_tensor(rng.choice(len(chance), schedule.batch, p=chance))
        loss = _loss(network, given, rows, schedule)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        torch.nn.utils.clip_grad_norm_(network.parameters(), _CLIP_NORM)
        optimizer.step()
        _average(averaged, network, min(schedule.average, (done + 1) / (done + 20)))
    return averaged


def _loss(network: TotalsNetwork, given: _Tensors, rows: Tensor, schedule: TotalsSchedule) -> Tensor:
    """MeanFactors distance in logarithms over the batches of each job."""
    by_layers = torch.rand(len(rows)) < schedule.layers_share
    way = torch.where(by_layers, 0, torch.randint(1, len(LEVELS), (len(rows),)))
    shown = torch.where(by_layers, given.network[rows], 0)
    factors = network.train_forward(given.facts[rows, way], given.tokens[shown], given.kinds[shown])
    found = memory(factors, given.held[rows], given.unit[rows], given.units[rows])
    there = given.there[rows].unsqueeze(1)
    apart = (found - given.target[rows]).abs()
    return torch.as_tensor((apart * there).sum() / (COUNTERS * there.sum()))


@torch.no_grad()  # type: ignore[untyped-decorator]
def _average(averaged: TotalsNetwork, network: TotalsNetwork, decay: float) -> None:
    for kept, fresh in zip(averaged.parameters(), network.parameters(), strict=True):
        kept.lerp_(fresh, 1.0 - decay)


@torch.no_grad()  # type: ignore[untyped-decorator]
def predict(
    networks: Sequence[TotalsNetwork], facts: Floats, shown: NDArray[np.int64], tokens: Tokens
) -> NDArray[np.float32]:
    """(rows, counters, factors); `shown` are the rows of `tokens`, 0 for a summary."""
    mean = MeanFactors(networks).eval()
    parts = []
    for low in range(0, len(facts), 4096):
        at = shown[low : low + 4096]
        given = (facts[low : low + 4096], tokens.tokens[at], tokens.kinds[at])
        parts.append(mean(*(torch.as_tensor(one) for one in given)).numpy())
    return np.concatenate(parts)
