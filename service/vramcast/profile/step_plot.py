"""A picture of memory over a training step, by what it is used for."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from vramcast.errors import InvalidInput
from vramcast.forecast.peaks import memory_curve, peaks
from vramcast.forecast.tape import Moment, Role, Tape
from vramcast.task.quantity import GIB

# From what stays to what comes and goes, so that the lower bands are level.
_BANDS = (
    (Role.FROZEN, "frozen weights", "#9aa5b1"), (Role.WEIGHT, "weights", "#4c78a8"),
    (Role.BUFFER, "buffers", "#b9a7d1"), (Role.STATE, "optimizer states", "#72b7b2"),
    (Role.WORKSPACE, "workspaces", "#d6d6d6"), (Role.INPUT, "batch", "#eeca3b"),
    (Role.GRADIENT, "gradients", "#54a24b"), (Role.SAVED, "saved activations", "#f58518"),
    (Role.TEMPORARY, "temporary tensors", "#e45756"),
)  # fmt: skip
_PHASES = {Moment.FORWARD: "forward", Moment.BACKWARD: "backward", Moment.UPDATE: "update"}
_STEPS = (Moment.STEP, Moment.END)


def need_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidInput("--plot needs matplotlib, which is not installed: pip install matplotlib")


def plot_step(tape: Tape, title: str, path: Path) -> None:
    """The last step of the tape: the earlier ones fill the allocator's cache."""
    starts = [mark.event for mark in tape.marks if mark.moment in _STEPS]
    start, stop = starts[-2], starts[-1]
    curve = memory_curve(tape)
    shown = slice(start, stop)
    events = np.arange(stop - start)
    figure, axes = _figure()
    bands = [(role, name, colour) for role, name, colour in _BANDS if curve.by_role_bytes[shown, role].any()]
    axes.stackplot(
        events, *(curve.by_role_bytes[shown, role] / GIB for role, _, _ in bands),
        labels=[name for _, name, _ in bands], colors=[colour for _, _, colour in bands], step="post", linewidth=0,
    )  # fmt: skip
    axes.plot(
        events, curve.reserved_bytes[shown] / GIB, color="#333333", linewidth=1, label="reserved by the allocator"
    )
    for mark in tape.marks:
        if mark.moment in _PHASES and start <= mark.event < stop:
            axes.axvline(mark.event - start, color="#333333", linewidth=0.6, linestyle=":")
            axes.text(mark.event - start, 1.01, f" {_PHASES[mark.moment]}", transform=axes.get_xaxis_transform(),
                      fontsize=8)  # fmt: skip
    highest = int(curve.active_bytes[shown].argmax())
    axes.plot(highest, curve.by_role_bytes[start + highest].sum() / GIB, "v", color="#333333", markersize=5,
              label="highest in this step")  # fmt: skip
    peak = peaks(tape)
    axes.set(xlabel="allocations and frees, in order", ylabel="GiB", xlim=(0, max(1, stop - start)))
    told = (
        f"peak {peak.active_bytes / GIB:.2f} GiB active in {peak.moment}, {peak.reserved_bytes / GIB:.2f} GiB reserved"
    )
    axes.set_title(f"{title}\n{told}", fontsize=10, pad=18)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    figure.savefig(path, dpi=110, bbox_inches="tight")


def _figure() -> tuple[Any, Any]:
    """Without pyplot, which would choose a window system."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(9, 4.5))
    return figure, figure.add_subplot()
