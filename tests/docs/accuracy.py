"""The tables of docs/forecast.md that the shipped manifest states."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_MANIFEST = Path(__file__).parents[2] / "model_artifacts/manifest.json"
_SLICES = {
    "timm-a100": "timm on A100",
    "gpumemnet-cnn": "synthetic CNN",
    "gpumemnet-mlp": "synthetic MLP",
    "xmem": "xMem's runs",
}
_BIN_GB = {"gpumemnet-mlp": 1}
_DEFAULT_BIN_GB = 8


def accuracy_table() -> str:
    return _table(
        "| slice | median / mean error | bins | network alone, median | physics alone, median "
        "| risk 0.05: covers, over | risk 0.01: covers, over | OOM foreseen at 0.05 | sm_active classes |",
        (
            [
                *(_slice(e), _errors(e), _bins(e)),
                *(_percent(e["network_median_error"]), _percent(e["physics_median_error"])),
                *(_bound(e, "0.05"), _bound(e, "0.01"), _foreseen(e), _classes(e)),
            ]
            for e in _entries("accuracy")
        ),
    )


def summary_table() -> str:
    return _table(
        "| slice | median / mean error | physics alone, median | risk 0.05: covers, over | risk 0.01: covers, over |",
        (
            [_slice(e), _errors(e), _percent(e["physics_median_error"]), _bound(e, "0.05"), _bound(e, "0.01")]
            for e in _entries("summary_accuracy")
        ),
    )


def recorded_table() -> str:
    """Networks that the bounds have not seen."""
    return _recorded("network", "source, method, GPUs, lengths", lambda name: name.count("/") == 3)


def recorded_sources_table() -> str:
    """Whole sources that the bounds have not seen."""
    return _recorded("source", "source", lambda name: "/" not in name)


def _recorded(unseen: str, what: str, shown: Callable[[str], bool]) -> str:
    found = json.loads(_MANIFEST.read_text())["recorded_accuracy"]
    return _table(
        f"| {what} | counter | runs | median error | risk 0.05: covers, over | risk 0.01: covers, over |",
        (
            [e["slice"].replace("/", ", "), counter, str(f["rows"]), _percent(f["median_error"]), _bound(f, "0.05"),
             _bound(f, "0.01")]
            for e in found if e["unseen"] == unseen and shown(e["slice"])
            for counter, f in e.get("counters", {}).items()
        ),
    )  # fmt: skip


def recorded_pooled_table() -> str:
    """Over sources and over counters of what a run holds."""
    found = json.loads(_MANIFEST.read_text())["recorded_accuracy"]
    return _table(
        "| slice | left out | runs | median error | risk 0.05: covers, over | risk 0.01: covers, over |",
        (
            [e["slice"], f"each {e['unseen']}", str(f["rows"]), _percent(f["median_error"]), _bound(f, "0.05"),
             _bound(f, "0.01")]
            for e in found if (f := e.get("held"))
        ),
    )  # fmt: skip


def recorded_intervals_table() -> str:
    """Image networks that the bounds have not seen, of which only the largest batch that ran is known."""
    found = json.loads(_MANIFEST.read_text())["recorded_accuracy"]
    return _table(
        "| source | networks | median between both batches | allowed at 0.05, of the largest batch that ran "
        "| failing batches kept off at 0.05, at 0.01 |",
        (
            [e["slice"], str(e["interval_rows"]), _percent(e["interval_inside"]),
             f"{e['interval_batch_allowed']['0.05']:.2f}",
             ", ".join(_percent(e["interval_oom_foreseen"][risk]) for risk in ("0.05", "0.01"))]
            for e in found if e["unseen"] == "network" and "interval_rows" in e and "/" not in e["slice"]
            and e["slice"] != "all"
        ),
    )  # fmt: skip


def _entries(key: str) -> list[dict[str, Any]]:
    by_slice = {entry["slice"]: entry for entry in json.loads(_MANIFEST.read_text())[key]}
    return [by_slice[name] for name in _SLICES]


def _table(title: str, rows: Iterator[list[str]]) -> str:
    ruler = "|" + "---|" * (title.count("|") - 1)
    return "\n".join([title, ruler, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _slice(entry: dict[str, Any]) -> str:
    return f"{_SLICES[entry['slice']]} ({entry['rows']:,})"


def _errors(entry: dict[str, Any]) -> str:
    return f"{100 * entry['median_error']:.2f} / {_percent(entry['mean_error'])}"


def _bins(entry: dict[str, Any]) -> str:
    width = _BIN_GB.get(entry["slice"], _DEFAULT_BIN_GB)
    return f"{width} GB {entry[f'bin_accuracy_{width}gb']:.3f}"


def _bound(entry: dict[str, Any], risk: str) -> str:
    return f"{_percent(entry['coverage'][risk])}, {_percent(entry['over_reservation'][risk])}"


def _foreseen(entry: dict[str, Any]) -> str:
    return _percent(entry["oom_foreseen"]["0.05"]) if "oom_foreseen" in entry else ""


def _classes(entry: dict[str, Any]) -> str:
    return f"{entry['sm_active_class_accuracy']:.3f}" if "sm_active_class_accuracy" in entry else ""


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
