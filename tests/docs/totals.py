"""The tables of docs/forecast.md that the manifest of totals states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MANIFEST = Path(__file__).parents[2] / "model_artifacts/totals.json"
_KINDS = ("all", "amp", "16-bit", "checkpointed", "lora", "qlora", "sharded", "inference")
_SHOWN = {"16-bit": "16-bit, all weights", "qlora": "LoRA on quantized weights", "lora": "LoRA", "amp": "AMP"}
_TOLD = {"layers": "a name's or profile's layers", "summary": "a full summary", "terse": "parameters and activations"}
_LEAST_RUNS = 8


def totals_table() -> str:
    """Simulated runs of architectures that were left out."""
    rows = [_row(e) for kind in _KINDS for e in _read()["accuracy"] if e["kind"] == kind and e["told"] in _TOLD]
    title = "| runs | known | architectures | median / mean error | rules alone | risk 0.05: covers, over | 0.01 |"
    return "\n".join([title, "|---|---|---|---|---|---|---|", *rows]) + "\n"


def _row(entry: dict[str, Any]) -> str:
    errors, rules = (
        f"{_percent(entry[f'{by}median_error'])} / {_percent(entry[f'{by}mean_error'])}" for by in ("", "rules_")
    )
    kind, told = _SHOWN.get(entry["kind"], entry["kind"]), _TOLD[entry["told"]]
    bounds = (_bound(entry, risk) for risk in ("0.05", "0.01"))
    return f"| {' | '.join((kind, told, str(entry['architectures']), errors, rules, *bounds))} |"


def measured_totals_table() -> str:
    """Measured runs, by a summary; the model has not seen their architecture."""
    found = _read()["measured"]
    rules = {e["slice"]: e for e in found if e["by"] == "rules"}
    rows = [
        f"| {e['slice'].replace('/', ', ')} | {e['counter']} | {e['rows']} | {_percent(e['median_error'])} | "
        f"{_percent(rules[e['slice']]['median_error'])} | {_bound(e, '0.05')} | {_bound(e, '0.01')} |"
        for e in found
        if e["by"] == "learned" and e.get("rows", 0) >= _LEAST_RUNS and e["slice"] != "all"
    ]
    title = "| source | counter | runs | median error | rules alone | risk 0.05: covers, over | 0.01 |"
    return "\n".join([title, "|---|---|---|---|---|---|---|", *rows]) + "\n"


def _read() -> dict[str, Any]:
    return dict(json.loads(_MANIFEST.read_text()))


def _bound(entry: dict[str, Any], risk: str) -> str:
    return f"{_percent(entry['coverage'][risk])}, {_percent(entry['over_reservation'][risk])}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
