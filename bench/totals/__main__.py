"""Compares predictors of totals and writes one page.

    python -m bench.totals --data DIR --out docs/benchmarks/totals.md

The simulated runs are those of `vramcast train --totals`, and so are the folds' models of what ships, if it ran before
in the same directory. All predictors get the same rows and folds; whole architectures are left out. What was computed
is kept under `--work` until the rows change. From simulated runs it takes about an hour of one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from bench.totals import batches
from bench.totals.factors import ABLATIONS, NETWORK, Split, slug
from bench.totals.measured import measured_rows
from bench.totals.measured_fits import measured_factors
from bench.totals.page import TABLED_LEVELS, Compared, Missed, markdown
from numpy.typing import NDArray

from vramcast.train.progress import Progress
from vramcast.train.simulated_data import LEVELS, deal
from vramcast.train.totals import FOLDS, RESERVED, SimulatedRuns, kept_fits, missed_by, rules_missed, simulated_data
from vramcast.train.totals_blend import (
    Blend,
    Factors,
    Schedules,
    blended,
    by_network,
    by_trees,
    fit_blend,
    kept_network,
)
from vramcast.train.totals_kept import Kept

TREES, BLEND = "LightGBM, three factors", f"{NETWORK} and LightGBM averaged"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the measured runs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("model_artifacts/work"), help="that of `vramcast train`")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    progress, schedules = Progress(), Schedules()
    runs = simulated_data(asked.work, progress)
    bench = Bench(runs, schedules, kept_fits(asked.work, runs, schedules, progress))
    compared = bench.compare()
    rows = measured_rows(asked.data, runs.groups)
    fold_of = dict(zip(runs.data.group.tolist(), bench.fold.tolist(), strict=True))
    fold = np.array([fold_of.get(group, 0) for group in rows.data.group.tolist()])
    factors = measured_factors(rows, fold, bench.blends, bench.kept)
    asked.out.write_text(markdown(compared, rows, factors, BLEND, batches.DRAWN), encoding="utf-8")


class Bench:
    def __init__(self, runs: SimulatedRuns, schedules: Schedules, kept: Kept) -> None:
        self.runs, self.schedules, self.kept = runs, schedules, kept
        self.fold = deal(runs.data.group, FOLDS)
        self.blends: list[Blend] = []  # by fold

    def compare(self) -> Compared:
        factors: dict[str, list[Factors]] = {}
        direct: dict[str, list[Missed]] = {}
        splits = [self._split(number) for number in range(FOLDS)]
        for split in splits:  # what ships first: all else is compared with it
            self.blends.append(fit_blend(split.seen, self.runs.tokens, self.schedules, self.kept, str(split.number)))
        for split, blend in zip(splits, self.blends, strict=True):
            for name, found in self._factors(split, blend).items():
                factors.setdefault(name, []).append(found)
        for split in splits:
            for name in batches.NAMES:
                direct.setdefault(name, []).append(self._batches(split, name))
        return self._compared(factors, direct)

    def _split(self, number: int) -> Split:
        data = self.runs.data
        return Split(number, data.where(self.fold != number), data.where(self.fold == number))

    def _factors(self, split: Split, blend: Blend) -> dict[str, Factors]:
        found = {TREES: self._array(TREES, split, lambda: by_trees(blend.trees, split.held))}
        found[NETWORK] = self._array(NETWORK, split, lambda: by_network(blend.network, split.held, self.runs.tokens))
        found[BLEND] = blended(found[TREES], found[NETWORK])
        for name, shape in ABLATIONS.items():
            network = kept_network(split.seen, self.runs.tokens, shape, self.schedules.network, self.kept,
                                   f"{slug(name)}-{split.number}")  # fmt: skip
            found[name] = self._array(name, split, lambda n=network: by_network(n, split.held, self.runs.tokens))
        return found

    def _batches(self, split: Split, name: str) -> Missed:
        return self._array(f"batches {name}", split, lambda: batches.missed_by_batches(split, name, TABLED_LEVELS))

    def _array(self, name: str, split: Split, make: Callable[[], NDArray[np.float64]]) -> NDArray[np.float64]:
        return self.kept.array(f"found-{slug(name)}-{split.number}", make)

    def _compared(self, factors: dict[str, list[Factors]], direct: dict[str, list[Missed]]) -> Compared:
        order = np.concatenate([np.flatnonzero(self.fold == number) for number in range(FOLDS)])
        data = self.runs.data.where(order)
        missed: dict[str, Missed] = {"rules": np.repeat(rules_missed(data)[:, None], len(LEVELS), axis=1)}
        for name, found in factors.items():
            missed[name] = missed_by(data, np.concatenate(found)[:, :, RESERVED], data.reserved_bytes)
        missed |= {f"{name}, memory of a batch": np.concatenate(one) for name, one in direct.items()}
        return Compared(data, missed)


if __name__ == "__main__":
    main()
