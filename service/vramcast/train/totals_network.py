"""The network of totals: a BiGRU over the layer tokens, then a Transformer encoder, joined with the facts.

It tells three factors for each counter: of the floor, of where the line begins and of how steep it is
(`forecast/totals_features.py`). What it is judged by is the memory that they add up to, at every batch of a job.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vramcast.forecast.totals_features import FACTS
from vramcast.forecast.totals_model import FACTORS, MOST_FACTOR
from vramcast.task.quantity import GIB
from vramcast.train.network import CLIP, Encoder, LayerReader
from vramcast.train.simulated_data import Floats, Simulated, Tokens

COUNTERS = 2  # tensors, and what is reserved for them
_CLIP_NORM = 1.0
_WARM_UP_STEPS = 60
# What hardly any GPU holds counts less, as for the trees.
_MOST_BYTES = 160 * GIB
_BEYOND = 0.1
_BY_LAYERS = 0


@dataclass(frozen=True, slots=True)
class TotalsShape:
    """`recurrent` and `attention` can be switched off for ablations."""

    width: int = 32
    recurrent_width: int = 16  # per direction
    heads: int = 4
    facts_width: int = 96
    dropout: float = 0.05
    recurrent: bool = True
    attention: bool = True


@dataclass(frozen=True, slots=True)
class TotalsSchedule:
    """A step shows some networks with some of their jobs each: layers are read once for all jobs of a network."""

    steps: int = 4000
    networks: int = 16
    jobs: int = 12
    learning_rate: float = 4e-3
    weight_decay: float = 0.05
    average: float = 0.998


class TotalsNetwork(LayerReader):
    mean: Tensor
    scale: Tensor

    def __init__(self, shape: TotalsShape) -> None:
        width = shape.width
        super().__init__(width, shape.recurrent_width)
        self.shape = shape
        self.register_buffer("mean", torch.zeros(len(FACTS)))
        self.register_buffer("scale", torch.ones(len(FACTS)))
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
        return self.factors(facts, self.layers(tokens, kinds))

    def layers(self, tokens: Tensor, kinds: Tensor) -> Tensor:
        """(networks, 2 * width): zero where there are no tokens."""
        encoders = (self.encoder,) if self.shape.attention else ()
        return torch.cat(self.read(tokens, kinds, encoders, recurrent=self.shape.recurrent), dim=1)

    def factors(self, facts: Tensor, layers: Tensor) -> Tensor:
        standard = torch.clamp((facts - self.mean) / self.scale, -CLIP, CLIP)
        raw = self.trunk(torch.cat([layers, self.facts(standard)], dim=1))
        return torch.clamp(raw.reshape(-1, COUNTERS, FACTORS), -MOST_FACTOR, MOST_FACTOR)


@dataclass(frozen=True, slots=True)
class _Tensors:
    facts: Tensor  # (rows, LEVELS, facts)
    tokens: Tensor
    kinds: Tensor
    held: Tensor  # GiB
    unit: Tensor  # (rows, LEVELS): GiB of a million
    units: Tensor  # millions
    target: Tensor  # (rows, counters, batches), logarithms of GiB; NaN where nobody counted
    share: Tensor  # of each in the loss


def _tensors(data: Simulated, tokens: Tokens) -> _Tensors:
    def tensor(values: NDArray[np.floating]) -> Tensor:
        return torch.as_tensor(np.asarray(values, np.float32))

    both = np.stack([data.active_bytes, data.reserved_bytes], axis=1)
    counted = (data.units > 0)[:, None] & ~np.isnan(both)
    share = counted * np.where(both > _MOST_BYTES, _BEYOND, 1.0) / np.maximum(1, counted.sum((1, 2)))[:, None, None]
    target = np.log(np.where(counted, np.maximum(both, 1.0), 1.0) / GIB)
    return _Tensors(
        tensor(data.facts), tensor(tokens.tokens), torch.as_tensor(tokens.kinds), tensor(data.held_bytes / GIB),
        tensor(data.unit_bytes / GIB * 1e6), tensor(data.units / 1e6), tensor(target), tensor(share),
    )  # fmt: skip


def _memory(factors: Tensor, held: Tensor, unit: Tensor, units: Tensor) -> Tensor:
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
    draws = _Draws(data, weight, schedule, seed)
    given = _tensors(data, tokens)
    network = TotalsNetwork(shape) if start is None else copy.deepcopy(start)
    if start is None:
        network.standardize(given.facts.flatten(0, 1))
    averaged = copy.deepcopy(network).eval()
    optimizer = torch.optim.AdamW(network.parameters(), schedule.learning_rate, weight_decay=schedule.weight_decay)
    network.train()
    for done in range(schedule.steps):
        rate = 0.5 * (1.0 + math.cos(math.pi * done / schedule.steps)) * min(1.0, (done + 1) / _WARM_UP_STEPS)
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate * rate + 1e-5
        loss = _loss(network, given, *draws.next())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        torch.nn.utils.clip_grad_norm_(network.parameters(), _CLIP_NORM)
        optimizer.step()
        _average(averaged, network, min(schedule.average, (done + 1) / (done + 20)))
    return averaged


class _Draws:
    """Networks by the weight of their jobs, then jobs of each, and how each job is told."""

    def __init__(self, data: Simulated, weight: Floats, schedule: TotalsSchedule, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._schedule = schedule
        self._names, index = np.unique(data.network, return_inverse=True)
        self._rows = np.argsort(index, kind="stable")
        self._counts = np.bincount(index)
        self._starts = np.cumsum(self._counts) - self._counts
        chance = np.bincount(index, weights=weight)
        self._chance = chance / chance.sum()
        self._told = np.flatnonzero(np.abs(data.facts).max((0, 2)) > 0)  # levels that some row has

    def next(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The networks' rows of the tokens; of each job its row, its network among them and how it is told."""
        chosen = self._rng.choice(len(self._names), self._schedule.networks, p=self._chance)
        each = np.repeat(np.arange(len(chosen)), self._schedule.jobs)
        at = (self._rng.random(len(each)) * self._counts[chosen[each]]).astype(np.int64)
        rows = self._rows[self._starts[chosen[each]] + at]
        way = self._rng.choice(self._told, len(each))
        return (torch.as_tensor(self._names[chosen]), torch.as_tensor(rows), torch.as_tensor(each),
                torch.as_tensor(way))  # fmt: skip


def _loss(network: TotalsNetwork, given: _Tensors, shown: Tensor, rows: Tensor, each: Tensor, way: Tensor) -> Tensor:
    """Mean distance in logarithms over the counters and batches of each job."""
    layers = network.layers(given.tokens[shown], given.kinds[shown])[each]
    layers = layers * (way == _BY_LAYERS).to(layers.dtype).unsqueeze(1)
    factors = network.factors(given.facts[rows, way], layers)
    found = _memory(factors, given.held[rows], given.unit[rows, way], given.units[rows])
    apart = (found - given.target[rows]).abs()
    return torch.as_tensor((apart * given.share[rows]).sum(dim=(1, 2)).mean())


@torch.no_grad()  # type: ignore[untyped-decorator]
def _average(averaged: TotalsNetwork, network: TotalsNetwork, decay: float) -> None:
    for kept, fresh in zip(averaged.parameters(), network.parameters(), strict=True):
        kept.lerp_(fresh, 1.0 - decay)


@torch.no_grad()  # type: ignore[untyped-decorator]
def predict(network: TotalsNetwork, data: Simulated, tokens: Tokens, level: int) -> NDArray[np.float64]:
    """(rows, counters, factors)."""
    network.eval()
    shown = data.network if level == _BY_LAYERS else np.zeros(len(data), np.int64)
    names, index = np.unique(shown, return_inverse=True)
    layers = network.layers(torch.as_tensor(tokens.tokens[names]), torch.as_tensor(tokens.kinds[names]))
    facts = torch.as_tensor(np.ascontiguousarray(data.facts[:, level]))
    return np.asarray(network.factors(facts, layers[torch.as_tensor(index)]).numpy(), np.float64)


def weight_count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())
