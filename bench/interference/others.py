"""Would another law recognize more of Lucid's slow pairs? Each family's best member is chosen on half of the models.

It is judged on the pairs whose models are both in the other half, beside the shipped law on the same pairs, over many
halves. So nothing is chosen on the pairs that judge it. And what would more knowledge give: compute demand, or trees
that are fitted on these very pairs?
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
from bench.interference.lucid import Alone, Ints, Names, Pairs
from bench.interference.recall import PRECISION, TOO_SLOW, Floats, recall

# Of the busy share; the rest is the memory's.
BUSY_POWERS = (0.0, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)
_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
_GPU_FREE = (0.8, 0.9, 1.0, 1.1, 1.2)  # of both jobs' shares together, what costs nothing
_MEMORY_FREE = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0)
_HALVES = 60
_LEAST_SLOW = 15  # pairs, in each half

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Recalls. `best`: of the member that is best on all pairs, which nobody could have chosen."""

    members: int
    halves: int
    best: float
    on_choosing_half: float
    on_other_half: float
    shipped_on_other_half: float


def by_power(alone: Alone, busy_power: float) -> Floats:
    """Each kind's pressure, if the busy share had this power."""
    return np.asarray(alone.busy**busy_power * alone.memory ** (1.0 - busy_power))


def with_compute(alone: Alone, busy_power: float) -> dict[str, Floats]:
    """Each kind's pressure, if its share of the GPU's peak arithmetic counted as work too."""
    works = {
        "the larger of memory and compute": np.maximum(alone.memory, alone.compute),
        "either of them, as if they did not wait for each other": 1 - (1 - alone.memory) * (1 - alone.compute),
        "compute alone": alone.compute,
    }
    return {name: np.asarray(alone.busy**busy_power * work ** (1.0 - busy_power)) for name, work in works.items()}


def fitted_trees(pairs: Pairs, *, strict: bool) -> float:
    """The recall of trees that are fitted on these very pairs, with everything that was measured of each job alone.

    Each pair of models is forecast by trees that saw no run of that pair; `strict`: no run of either model.
    """
    own, other = (pairs.alone.inputs[_both_ways(pairs.kinds, first)] for first in (0, 1))
    names = np.concatenate([pairs.models, pairs.models])
    features = np.concatenate([own, other, own * other, np.minimum(own, other), own + other], axis=1)
    target, sorted_names = np.log(np.clip(pairs.slowdowns.ravel(), 0.8, 4.0)), np.sort(names, axis=1)
    forecast = np.zeros(len(target))
    for held in sorted(set(map(tuple, sorted_names.tolist()))):
        asked = (sorted_names == held).all(axis=1)
        seen = ~np.isin(names, held).any(axis=1) if strict else ~asked
        forest = importlib.import_module("sklearn.ensemble").ExtraTreesRegressor(40, min_samples_leaf=5, random_state=0)
        forecast[asked] = forest.fit(features[seen], target[seen]).predict(features[asked])
    return pairs.recalled(np.asarray(forecast.reshape(2, -1).max(axis=0)))


def _both_ways(kinds: Ints, first: int) -> Ints:
    return np.concatenate([kinds[first], kinds[1 - first]])


def _families(gpu: Floats, memory: Floats, shipped: Floats) -> dict[str, Floats]:
    """Each member's order of the pairs. `gpu`, `memory`: what both jobs use, alone, (2, pairs). (members, pairs)"""
    time = {free: np.maximum(0, gpu.sum(axis=0) - free) for free in _GPU_FREE}
    bandwidth = [np.maximum(0, memory.sum(axis=0) - free) for free in _MEMORY_FREE]
    weighted = [weight * time[free] for weight, free in product(_WEIGHTS, _GPU_FREE)]
    powers = [
        np.maximum(*(gpu[i] ** a * memory[i] ** b * gpu[1 - i] ** c * memory[1 - i] ** d for i in (0, 1)))
        for a, b, c, d in product(_POWERS, repeat=4)
    ]
    found = {
        "one power for the busy share, the rest for memory": [
            gpu.prod(axis=0) ** power * memory.prod(axis=0) ** (1 - power) for power in BUSY_POWERS
        ],
        "the larger of GPU time and of memory beyond what is free": [
            np.maximum(one, two) for one, two in product(weighted, bandwidth)
        ],
        "their sum": [one + two for one, two in product(weighted, bandwidth)],
        "the shipped law and GPU time beyond what is free": [shipped + one for one in weighted],
        "other powers of both jobs' shares": powers,
    }
    # Where a member says the same of many pairs, the shipped law decides.
    return {name: np.array(members) + 1e-9 * shipped for name, members in found.items()}


def chosen_on_halves(pairs: Pairs, halves: int = _HALVES) -> dict[str, Chosen]:
    alone, worst = pairs.alone, pairs.worst
    shipped = pairs.products(alone.pressures)
    splits = list(_splits(pairs.models, worst, halves))
    members = _families(alone.busy[pairs.kinds], alone.memory[pairs.kinds], shipped)
    return {name: _chosen(found, shipped, worst, splits) for name, found in members.items()}


def _splits(models: Names, worst: Floats, halves: int) -> Iterator[tuple[Bools, Bools]]:
    """Pairs of two models of one half, and of the other half. Pairs of both halves judge nothing."""
    random, names = np.random.default_rng(0), sorted(set(models.ravel().tolist()))
    for _ in range(halves):
        ours = np.isin(models, random.permutation(names)[: (len(names) + 1) // 2])
        both = ours.all(axis=1), ~ours.any(axis=1)
        if all((worst[pairs] > TOO_SLOW).sum() >= _LEAST_SLOW for pairs in both):
            yield both


def _chosen(members: Floats, shipped: Floats, worst: Floats, splits: Sequence[tuple[Bools, Bools]]) -> Chosen:
    def recalled(order: Floats, pairs: Bools) -> float:
        return recall(order[pairs], worst[pairs], TOO_SLOW, PRECISION)

    every, figures = np.ones(len(worst), dtype=np.bool_), []
    for ours, others in splits:
        recalls = [recalled(member, ours) for member in members]
        best = members[int(np.argmax(recalls))]
        figures.append((max(recalls), recalled(best, others), recalled(shipped, others)))
    chosen, judged, beside = np.mean(figures, axis=0).tolist()
    best_of_all = max(recalled(member, every) for member in members)
    return Chosen(len(members), len(splits), best_of_all, chosen, judged, beside)
