"""How far the model of totals is off on architectures that it never saw: bounds for one more, and accuracy by kind.

An architecture counts once, however many of its runs were simulated. A bound at a risk holds for that share of the runs
of one more architecture, as far as so few can tell: with fewer than nineteen, the worst run bounds the risk of 0.05.
Rarer risks follow from it as in a normal distribution, or from the runs, whichever is further. No margin passes the
ceiling of totals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from vramcast.forecast.forecast import RISKS, Factors, Spreads
from vramcast.forecast.totals import most_over_median
from vramcast.train.simulated_data import LEVELS, Simulated

_TOLD_RISK = 0.05  # what dozens of architectures can tell; rarer ones follow from it
_LEAST_ARCHITECTURES = 4
_ONE = Spreads({_TOLD_RISK: 1.0})
_REPORTED = (0.1, 0.05, 0.01)
_MOSTLY = 0.85  # of the runs of an architecture that is covered


def fit_margins(missed: NDArray[np.float64], data: Simulated, rows: NDArray[np.bool_]) -> dict[str, Factors]:
    """By cell. `missed` is (rows, LEVELS, batches): log(recorded / forecast), NaN where there is no batch."""
    found: dict[str, Factors] = {}
    for level in range(len(LEVELS)):
        for width in range(data.cells.shape[2]):
            names = np.where(rows, data.cells[:, level, width], "")
            for cell in sorted(set(names.tolist()) - {""}):
                here = names == cell
                if cell not in found and len(set(data.group[here])) >= _LEAST_ARCHITECTURES:
                    found[cell] = _factors(missed[here, level], data.group[here])
    return found


def _factors(missed: NDArray[np.float64], group: NDArray[np.str_]) -> Factors:
    scores, groups = _flat(missed, group)
    count = len(set(groups))
    told = grouped_quantile(scores, groups, 1.0 - _TOLD_RISK)
    margins = {}
    for risk in RISKS:
        own = grouped_quantile(scores, groups, 1.0 - risk)
        normal = told * stats.norm.ppf(1.0 - risk) / stats.norm.ppf(1.0 - _TOLD_RISK)
        rare = max(own, normal) if risk < _TOLD_RISK else own
        margins[risk] = min(max(0.0, rare), math.log(most_over_median(risk)))
    return Factors(count, margins)


def grouped_quantile(scores: NDArray[np.float64], group: NDArray[np.str_], level: float) -> float:
    """The score that so large a share of the runs of one more group stays within; the largest if there are too few."""
    _, index, counts = np.unique(group, return_inverse=True, return_counts=True)
    order = np.argsort(scores)
    reached = np.cumsum((1.0 / counts[index])[order])
    at = np.searchsorted(reached, level * (len(counts) + 1) - 1e-9)
    return float(scores[order[min(int(at), len(order) - 1)]])


def _flat(missed: NDArray[np.float64], group: NDArray[np.str_]) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    there = ~np.isnan(missed)
    return missed[there], np.repeat(group, there.sum(1))


def margin_of(cells: Mapping[str, Factors], names: NDArray[np.str_], risk: float) -> float:
    """NaN for a kind of run that was not recorded often enough."""
    return next((cells[name].margin(_ONE, risk) for name in names.tolist() if name in cells), float("nan"))


def unseen_margins(
    missed: NDArray[np.float64], data: Simulated, fold: NDArray[np.int64]
) -> dict[float, NDArray[np.float64]]:
    """(rows, LEVELS) by risk, of cells that were fitted on the other folds."""
    margins = {risk: np.full((len(data), len(LEVELS)), np.nan) for risk in _REPORTED}
    for number in sorted(set(fold.tolist())):
        cells = fit_margins(missed, data, fold != number)
        cached: dict[tuple[str, ...], dict[float, float]] = {}
        for row in np.flatnonzero(fold == number):
            for level in range(len(LEVELS)):
                key = tuple(data.cells[row, level].tolist())
                if key not in cached:
                    cached[key] = {risk: margin_of(cells, data.cells[row, level], risk) for risk in _REPORTED}
                for risk in _REPORTED:
                    margins[risk][row, level] = cached[key][risk]
    return margins


def accuracy(
    missed: NDArray[np.float64], rules_missed: NDArray[np.float64], data: Simulated, fold: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """By level and kind, of runs in settings that layers do not tell; each architecture was left out in turn."""
    margins = unseen_margins(missed, data, fold)
    return [
        {"told": str(told), "kind": kind, **_figures(missed[:, level], rules_missed, margins, level, data, rows)}
        for level, told in enumerate(LEVELS)
        for kind, rows in _kinds(data, level)
        if not np.isnan(margins[_TOLD_RISK][rows, level]).all()  # too few architectures: the rules answer
    ]


def _kinds(data: Simulated, level: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """All, each setting that users ask about, and each of the cells."""
    names = data.cells[:, level, 0]
    of = {
        "all": np.ones(len(data), np.bool_),
        "amp": np.char.find(names, "/amp/") >= 0,
        "16-bit": np.char.find(names, "/16-bit/full") >= 0,
        "checkpointed": np.char.find(names, "/checkpointed") >= 0,
        "lora": np.char.find(names, "/lora") >= 0,
        "qlora": np.char.find(names, "/quantized") >= 0,
        "sharded": np.char.find(names, "/sharded") >= 0,
        "inference": np.char.find(names, "/inference") >= 0,
    }
    of |= {str(name).partition("/")[2]: names == name for name in sorted(set(names.tolist()))}
    for kind, rows in of.items():
        if (rows & data.unfamiliar).any():
            yield kind, rows & data.unfamiliar


def _figures(
    missed: NDArray[np.float64], rules_missed: NDArray[np.float64], margins: dict[float, NDArray[np.float64]],
    level: int, data: Simulated, rows: NDArray[np.bool_],
) -> dict[str, Any]:  # fmt: skip
    """An architecture counts once in the coverage and the over-reservation, each run in the errors."""
    scores, groups = _flat(missed[rows], data.group[rows])
    rules = _flat(rules_missed[rows], data.group[rows])[0]
    error, of_rules = np.abs(np.expm1(-scores)), np.abs(np.expm1(-rules))
    result: dict[str, Any] = {
        "runs": len(scores), "architectures": len(set(groups)),
        "median_error": float(np.median(error)), "mean_error": float(error.mean()),
        "p90_error": float(np.quantile(error, 0.9)),
        "rules_median_error": float(np.median(of_rules)), "rules_mean_error": float(of_rules.mean()),
        "coverage": {}, "over_reservation": {}, "architectures_covered": {},
    }  # fmt: skip
    _, index = np.unique(groups, return_inverse=True)
    for risk, column in margins.items():
        margin = np.repeat(column[rows, level], (~np.isnan(missed[rows])).sum(1))
        known = ~np.isnan(margin)
        within = np.where(known, scores <= margin, np.nan)
        share = np.array([np.nanmean(within[index == at]) if known[index == at].any() else np.nan
                          for at in range(int(index.max()) + 1)])  # fmt: skip
        result["coverage"][f"{risk:g}"] = float(np.nanmean(share))
        mostly = np.where(np.isnan(share), np.nan, share >= _MOSTLY)
        result["architectures_covered"][f"{risk:g}"] = float(np.nanmean(mostly))
        result["over_reservation"][f"{risk:g}"] = float(np.nanmedian(np.expm1(margin - scores)))
    return result
