"""The pinned parameter counts of the catalog's models: what somebody changed by mistake shows here."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True, slots=True)
class Pinned:
    parameters: int
    published: bool  # the count that its authors or its hub page state; the others were counted here


def pinned() -> dict[str, Pinned]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return {row["name"]: Pinned(int(row["parameters"]), bool(row["published"])) for row in csv.DictReader(file)}
