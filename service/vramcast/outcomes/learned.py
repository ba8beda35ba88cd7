"""What was learned, as JSON that a person can read and a restart can go on from.

A cell's scores are one string: `1823:953` is a run that took e^0.1823 of its median where the bound had left e^0.0953;
`+` marks a run that would have gone higher.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vramcast.forecast.conformal import RISKS
from vramcast.outcomes.calibration import CellState
from vramcast.outcomes.oom_history import OomRecord
from vramcast.outcomes.run_scores import Score

_UNIT = 1e4


def cell_json(cell: CellState) -> dict[str, Any]:
    return {
        "product": cell.product,
        "family": cell.family,
        "outcomes": cell.outcomes,
        "misses": cell.misses,
        "ooms": cell.ooms,
        "shifts": cell.shifts,
        "factors": {f"{risk:g}": round(math.exp(c), 3) for risk, c in zip(RISKS, cell.corrections, strict=True)},
        "corrections": list(cell.corrections),
        "level": cell.level,
        "scores": " ".join(_encode(score) for score in cell.scores),
    }


def read_cell(document: Mapping[str, Any]) -> CellState:
    """Raises ValueError, KeyError or TypeError for what is no cell."""
    corrections = tuple(float(value) for value in document["corrections"])
    level = float(document["level"])
    if len(corrections) != len(RISKS) or not all(map(math.isfinite, (*corrections, level))):
        raise ValueError(f"corrections: expected {len(RISKS)} numbers, got {document['corrections']!r}")
    counts = (int(document[name]) for name in ("outcomes", "misses", "ooms", "shifts"))
    scores = [_decode(text) for text in str(document["scores"]).split()]
    return CellState(str(document["product"]), str(document["family"]), scores, corrections, level, *counts)


def oom_json(record: OomRecord) -> list[Any]:
    return [record.namespace, record.owner, record.fingerprint, record.short_bytes, round(record.died_at)]


def read_oom(values: Any) -> OomRecord:
    """Raises ValueError or TypeError."""
    namespace, owner, fingerprint, short_bytes, died_at = values
    return OomRecord(str(namespace), str(owner), str(fingerprint), int(short_bytes), float(died_at))


def _encode(score: Score) -> str:
    return f"{round(score.ratio * _UNIT)}:{round(score.margin * _UNIT)}{'+' if score.censored else ''}"


def _decode(text: str) -> Score:
    ratio, margin = text.removesuffix("+").split(":")
    return Score(round(int(ratio) / _UNIT, 4), round(int(margin) / _UNIT, 4), text.endswith("+"))
