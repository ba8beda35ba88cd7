"""Networks of totals, and what switches off their parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vramcast.train.simulated_data import Simulated
from vramcast.train.totals_network import TotalsShape

NETWORK = "BiGRU-Transformer"
ABLATIONS: Mapping[str, TotalsShape] = {
    "plain Transformer (no BiGRU)": TotalsShape(recurrent=False),
    "BiGRU alone (no Transformer)": TotalsShape(attention=False),
    "facts alone (neither)": TotalsShape(recurrent=False, attention=False),
}


@dataclass(frozen=True, slots=True)
class Split:
    """The simulated runs with one fold of architectures left out."""

    number: int
    seen: Simulated
    held: Simulated


def slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower().split(" (")[0])
