"""Fits what each part of a step takes over its time at the GPU's peak: one weight per part and cell of runs.

There are few runs and many parts, so each weight is held near that of a wider set: a cell's near those of all training
runs, those near the ones of inference, and those near one figure.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from vramcast.forecast.saved import Array
from vramcast.forecast.step_parts import CELLS, PARTS, SpeedCell, weighted_seconds

# The usual kernel takes a third longer than the peak allows.
_USUAL = math.log(1.35)
# For how many rows the figure that a weight is held near counts: of inference, of all training, of one cell.
_HELD_INFERENCE, _HELD_TRAINING, _HELD_CELL = 4.0, 32.0, 16.0
_BEND = 0.1  # in logarithms: beyond this a miss counts as it is, not as its square
_ITERATIONS = 150


def fit_weights(parts: Array, seconds: Array, cells: NDArray[np.str_]) -> dict[str, Array]:
    """By cell. `parts` is (rows, parts), of runs that accumulate nothing."""
    trains = np.isin(cells, (SpeedCell.TRAINING, SpeedCell.CHANNELS_LAST))
    usual = np.full(len(PARTS), _USUAL)
    infers = cells == SpeedCell.INFERENCE
    inference = _fit(parts[infers], seconds[infers], usual, _HELD_INFERENCE)
    pooled = _fit(parts[trains], seconds[trains], inference, _HELD_TRAINING)
    logs = {SpeedCell.INFERENCE: inference}
    for cell in (SpeedCell.TRAINING, SpeedCell.CHANNELS_LAST):
        logs[cell] = _fit(parts[cells == cell], seconds[cells == cell], pooled, _HELD_CELL)
    return {cell: np.exp(logs[cell]) if cell in logs else _constant(parts, seconds, cells) for cell in CELLS}


def weights_by_row(weights: dict[str, Array], cells: NDArray[np.str_]) -> Array:
    """(rows, parts)."""
    return np.stack([weights[str(cell)] for cell in cells])


def _constant(parts: Array, seconds: Array, cells: NDArray[np.str_]) -> Array:
    """Hardly any run in fp32 was timed: one figure for all parts, and without a run that of training."""
    rows = cells == SpeedCell.FULL
    rows = rows if rows.any() else np.asarray(cells != SpeedCell.INFERENCE)
    rows = rows if rows.any() else np.ones(len(cells), np.bool_)
    return np.full(len(PARTS), np.median(seconds[rows] / weighted_seconds(parts[rows], np.ones(len(PARTS)))))


def _fit(parts: Array, seconds: Array, near: Array, held: float) -> Array:
    """Logarithms of the weights."""
    if len(seconds) < 2:
        return near
    given, target, start = (torch.as_tensor(values, dtype=torch.float64) for values in (parts, np.log(seconds), near))
    logs = start.clone().requires_grad_(True)
    hold = held / len(seconds)
    optimizer = torch.optim.LBFGS([logs], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        weighted = given * torch.exp(logs)
        running, begun = weighted[:, :-2].sum(1), weighted[:, -1]
        predicted = torch.log((running**4 + begun**4) ** 0.25 + weighted[:, -2])
        miss = torch.nn.functional.huber_loss(predicted, target, delta=_BEND) / _BEND
        value = miss + hold * ((logs - start) ** 2).mean()
        value.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return np.asarray(logs.detach().numpy(), np.float64)
