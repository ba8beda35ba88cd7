"""Fits the slowdown of tasks that share a GPU on Gavel's pairs, and checks it on Lucid's, which it never saw.

python -m bench.interference --gavel gavel_colocation.csv --lucid-alone lucid_alone.csv --lucid-pairs lucid_pairs.csv \\
    --out docs/benchmarks/interference.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.interference import gavel, lucid
from bench.interference.cold import forecast_pressures
from bench.interference.others import chosen_on_halves, fitted_trees
from bench.interference.page import Found, page

from vramcast.placement.interference import SLOWDOWN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gavel", type=Path, required=True, help="gavel_colocation.csv")
    parser.add_argument("--lucid-alone", type=Path, required=True)
    parser.add_argument("--lucid-pairs", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    fitted = gavel.read_pairs(arguments.gavel)
    newest = fitted.on(gavel.NEWEST)
    constant, _ = gavel.fit(gavel.loss(newest), newest.slowdown)
    print(f"fitted {constant:.2f} on the {gavel.NEWEST}; placement/interference.py has {SLOWDOWN:.2f}")
    measured = lucid.read_pairs(arguments.lucid_alone, arguments.lucid_pairs)
    print(lucid.check(measured.real, measured.alone.pressures))
    if arguments.out:
        print("fitting trees, some minutes", flush=True)
        trees = {name: fitted_trees(measured.real, strict=name == "strict") for name in ("pair", "strict")}
        cold, recorded = forecast_pressures(measured.alone)
        others = chosen_on_halves(measured.real)
        arguments.out.write_text(page(Found(fitted, measured, cold, recorded, trees, others)), encoding="utf-8")


if __name__ == "__main__":
    main()
