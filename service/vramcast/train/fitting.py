"""Fits one network: deterministic by seed, with averaged weights and early stopping on held-out groups.

There are few held-out groups, so their loss is noisy. Taking the epoch with the best loss picks a lucky one, which cost
a third of the accuracy. So the loss only stops a training that diverges; otherwise the last average is kept.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vramcast.forecast.features import Regime, without_optional
from vramcast.train.dataset import Dataset, assign_folds
from vramcast.train.network import ForecastNetwork, Shape, pinball
from vramcast.train.progress import Progress

# The first facts are never dropped: the regime, the prior, the run and the GPU.
_NEVER_DROPPED = 16
_SOURCE_WEIGHTS = {"gpumemnet-mlp": 0.3, "xmem": 2.0}
_CLIP_NORM = 1.0
_WARM_UP_STEPS = 60


@dataclass(frozen=True, slots=True)
class Schedule:
    epochs: int = 60
    batch: int = 128
    learning_rate: float = 4e-3
    weight_decay: float = 0.05
    average: float = 0.99
    fact_dropout: float = 0.1
    summary_share: float = 0.2  # of the rows, described by their summary alone
    terse_share: float = 0.2  # of the summaries, without the optional annotations
    utilization_weight: float = 2.0
    validation_folds: int = 16  # one of these folds is held out for early stopping
    patience: int = 8  # diverging epochs in a row before training stops
    astray: float = 1.25  # validation loss over its best that counts as diverging


@dataclass(slots=True)
class Fit:
    network: ForecastNetwork
    curve: list[tuple[float, float]] = field(default_factory=list)  # per epoch: training loss, validation loss


@dataclass(frozen=True, slots=True)
class _Tensors:
    facts: Tensor
    tokens: Tensor
    kinds: Tensor
    target: Tensor
    summary_facts: Tensor
    summary_target: Tensor
    censored: Tensor
    utilization: Tensor
    weight: Tensor


def fit(data: Dataset, shape: Shape, schedule: Schedule, seed: int, progress: Progress) -> Fit:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    held_out = assign_folds(data, schedule.validation_folds, seed) == 0
    tensors = _tensors(data)
    network = ForecastNetwork(shape)
    _standardize(network, tensors, data, np.flatnonzero(~held_out))
    averaged = copy.deepcopy(network).eval()
    best_loss, since = math.inf, 0
    trainer = _Trainer(network, averaged, tensors, schedule, rng, np.flatnonzero(~held_out))
    result = Fit(averaged)
    for _ in progress.over(range(schedule.epochs), f"seed {seed}"):
        training_loss = trainer.epoch()
        loss = _validation_loss(averaged, tensors, np.flatnonzero(held_out))
        result.curve.append((training_loss, loss))
        best_loss = min(best_loss, loss)
        since = since + 1 if loss > schedule.astray * best_loss else 0
        if since >= schedule.patience:
            break
    return result


class _Trainer:
    def __init__(
        self, network: ForecastNetwork, averaged: ForecastNetwork, tensors: _Tensors, schedule: Schedule,
        rng: np.random.Generator, rows: NDArray[np.int64],
    ) -> None:  # fmt: skip
        self._network, self._averaged, self._tensors = network, averaged, tensors
        self._schedule, self._rng, self._rows = schedule, rng, rows
        self._batch = min(schedule.batch, len(rows) // 2)
        sampled = float(tensors.weight[rows].clamp_max(1.0).sum())
        self._steps = schedule.epochs * max(1, int(sampled) // self._batch)
        self._done = 0
        self._optimizer = torch.optim.AdamW(
            network.parameters(), lr=schedule.learning_rate, weight_decay=schedule.weight_decay
        )

    def epoch(self) -> float:
        """Rows with a weight below 1 are sampled less often: the same influence for less work."""
        self._network.train()
        sampled = self._rng.random(len(self._rows)) < self._tensors.weight.numpy()[self._rows]
        order = self._rng.permutation(self._rows[sampled])
        starts = range(0, max(1, len(order) - self._batch + 1), self._batch)
        return sum(self._step(torch.as_tensor(order[low : low + self._batch])) for low in starts) / len(starts)

    def _step(self, rows: Tensor) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        loss = self._loss(rows)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), _CLIP_NORM)
        self._optimizer.step()
        self._done += 1
        self._average()
        return float(loss.detach())

    def _rate(self) -> float:
        way = 0.5 * (1.0 + math.cos(math.pi * min(1.0, self._done / self._steps)))
        return self._schedule.learning_rate * min(1.0, (self._done + 1) / _WARM_UP_STEPS) * way + 1e-5

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _average(self) -> None:
        decay = min(self._schedule.average, self._done / (self._done + 20))
        for kept, fresh in zip(self._averaged.parameters(), self._network.parameters(), strict=True):
            kept.lerp_(fresh, 1.0 - decay)

    def _loss(self, rows: Tensor) -> Tensor:
        """Drops some facts, and describes some rows by their summary alone."""
        tensors, network = self._tensors, self._network
        facts = tensors.facts[rows]
        dropped = torch.rand(facts.shape) < self._schedule.fact_dropout
        dropped[:, :_NEVER_DROPPED] = False
        facts = torch.where(dropped, network.mean.expand_as(facts), facts)
        sparse = torch.rand(len(rows)) < self._schedule.summary_share
        facts = torch.where(sparse[:, None], self._summaries(rows), facts)
        kinds = torch.where(sparse[:, None], 0, tensors.kinds[rows])
        tokens = tensors.tokens[rows] * (~sparse)[:, None, None]
        target = torch.where(sparse, tensors.summary_target[rows], tensors.target[rows])
        quantiles, utilization, _ = network(facts, tokens, kinds)
        loss = _memory_loss(network, quantiles, facts, target, tensors, rows)
        return loss + self._schedule.utilization_weight * _utilization_loss(utilization, tensors.utilization[rows])

    def _summaries(self, rows: Tensor) -> Tensor:
        facts = self._tensors.summary_facts[rows]
        terse = torch.rand(len(rows)) < self._schedule.terse_share
        return torch.where(terse[:, None], torch.as_tensor(without_optional(facts.numpy())), facts)


def _memory_loss(
    network: ForecastNetwork, quantiles: Tensor, facts: Tensor, target: Tensor, tensors: _Tensors, rows: Tensor
) -> Tensor:
    scale = (facts[:, : len(Regime)] * network.regime_scale).sum(1)
    return (pinball(quantiles, target, tensors.censored[rows]) / scale * tensors.weight[rows].clamp_min(1.0)).mean()


def _utilization_loss(predicted: Tensor, recorded: Tensor) -> Tensor:
    known = ~torch.isnan(recorded)
    return ((predicted - torch.nan_to_num(recorded)).abs() * known).sum() / known.sum().clamp_min(1)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _validation_loss(network: ForecastNetwork, tensors: _Tensors, held_out: NDArray[np.int64]) -> float:
    rows = torch.as_tensor(held_out)
    quantiles, utilization, _ = network(tensors.facts[rows], tensors.tokens[rows], tensors.kinds[rows])
    loss = _memory_loss(network, quantiles, tensors.facts[rows], tensors.target[rows], tensors, rows)
    return float(loss + _utilization_loss(utilization, tensors.utilization[rows]))


def _tensors(data: Dataset) -> _Tensors:
    weights = np.array([_SOURCE_WEIGHTS.get(str(source), 1.0) for source in data.source], dtype=np.float32)
    return _Tensors(
        facts=torch.as_tensor(data.facts),
        tokens=torch.as_tensor(data.tokens),
        kinds=torch.as_tensor(data.kinds),
        target=torch.as_tensor(data.target),
        summary_facts=torch.as_tensor(data.summary_facts),
        summary_target=torch.as_tensor(data.summary_target),
        censored=torch.as_tensor(data.censored),
        utilization=torch.as_tensor(data.utilization),
        weight=torch.as_tensor(weights),
    )


def _standardize(network: ForecastNetwork, tensors: _Tensors, data: Dataset, rows: NDArray[np.int64]) -> None:
    some = rows[::7]  # about the share of summaries in training
    regimes = np.concatenate([data.regime[rows], np.full(len(some), int(Regime.SUMMARY))])
    network.standardize(
        torch.cat([tensors.facts[rows], tensors.summary_facts[some]]),
        torch.as_tensor(regimes),
        torch.cat([tensors.target[rows], tensors.summary_target[some]]),
    )


@dataclass(frozen=True, slots=True)
class Predicted:
    quantiles: NDArray[np.float32]  # (rows, quantiles) of log(measured / prior)
    utilization: NDArray[np.float32]  # (rows, targets)
    state: NDArray[np.float32]  # (rows, width)


@torch.no_grad()  # type: ignore[untyped-decorator]
def predict(
    network: ForecastNetwork, facts: NDArray[np.float32], tokens: NDArray[np.float32], kinds: NDArray[np.int64]
) -> Predicted:
    quantiles, utilization, state = network(torch.as_tensor(facts), torch.as_tensor(tokens), torch.as_tensor(kinds))
    return Predicted(quantiles.numpy(), utilization.numpy(), state.numpy())
