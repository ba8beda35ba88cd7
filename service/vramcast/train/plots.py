"""Two plots for the artifact: the loss curves, and predictions against measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np

from vramcast.train.evaluation import Judged

mpl.use("Agg")
from matplotlib import pyplot as plt  # only after the backend is chosen


def loss_curves(curves: Sequence[Sequence[tuple[float, float]]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    for curve in curves:
        training, validation = zip(*curve, strict=True)
        axes.plot(training, color="tab:blue", alpha=0.5)
        axes.plot(validation, color="tab:orange", alpha=0.5)
    axes.set(xlabel="epoch", ylabel="loss (blue: training, orange: validation)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def predicted_against_measured(judged: Judged, path: Path) -> None:
    sources = sorted({str(source) for source in judged.source})
    figure, panels = plt.subplots(1, len(sources), figsize=(4 * len(sources), 4), squeeze=False)
    for axes, source in zip(panels[0], sources, strict=True):
        rows = (judged.source == source) & ~judged.censored & ~judged.suspect
        measured, predicted = judged.measured_mib[rows] / 1024, judged.median_mib[rows] / 1024
        axes.loglog(measured, predicted, ".", markersize=3, alpha=0.5)
        ends = np.array([measured.min(), measured.max()]) if rows.any() else np.array([1.0, 40.0])
        axes.loglog(ends, ends, color="black", linewidth=0.8)
        axes.set(title=source, xlabel="measured GiB", ylabel="predicted GiB (unseen groups)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
