"""Recordings alone against measured runs.

    python -m bench.recordings --data DIR [--slice NAME ...] [--every N] [--jobs N] [--cached] [--out FILE]

DIR holds `runs/*.csv`, `measurements.csv` and `xmem.csv`. Each row becomes a recording of the public network with the
row's settings, made without a GPU and answered as a forecast answers. Recordings are kept in the user's cache, by
their settings and the recorder's code, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from bench.recordings import speed
from bench.recordings.answers import answered, needed_bytes, room_bytes
from bench.recordings.cases import Case, Recipe
from bench.recordings.slices import SLICES, Result, distance
from bench.recordings.table import page
from bench.recordings.taping import cache_folder, cached_at, load_tape, record_into, versions

_RECORDINGS_PER_PROCESS = 40  # libraries keep memory


def main() -> None:
    arguments = _arguments()
    chosen = [found for found in SLICES if not arguments.slice or found.name in arguments.slice]
    results = [Result(found, found.read(arguments.data).every(arguments.every)) for found in chosen]
    folder = cache_folder()
    wanted = [recipe for result in results for case in result.cases.cases for recipe in recipes_of(case)]
    recipes = dict.fromkeys([*wanted, *speed.recipes()])
    if arguments.cached:
        failed = {recipe: "not in the cache" for recipe in recipes if not cached_at(folder, recipe).exists()}
    else:
        failed = make_recordings(list(recipes), folder, arguments.jobs)
    for result in results:
        answer(result, folder, failed)
    for result in results if arguments.rows else ():
        print_rows(result)
    text = page(results, speed.measured(folder), versions())
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


def recipes_of(case: Case) -> list[Recipe]:
    return [case.recipe, replace(case.recipe, batch=case.next_batch)] if case.next_batch else [case.recipe]


def make_recordings(recipes: list[Recipe], folder: Path, jobs: int) -> dict[Recipe, str]:
    """Records what the cache lacks. Returns the recipes that cannot be recorded, and why."""
    missing = [recipe for recipe in recipes if not cached_at(folder, recipe).exists()]
    failed: dict[Recipe, str] = {}
    start = time.monotonic()
    todo = [(recipe, cached_at(folder, recipe)) for recipe in missing]
    with get_context("spawn").Pool(jobs, maxtasksperchild=_RECORDINGS_PER_PROCESS) as pool:
        for at, (recipe, reason) in enumerate(pool.imap(record_into, todo), 1):
            if reason:
                failed[recipe] = reason
            note = f" ({reason[:150]})" if reason else ""
            seconds = time.monotonic() - start
            sys.stderr.write(f"{at}/{len(missing)} {seconds:.0f} s {recipe.network} batch {recipe.batch}{note}\n")
    return failed


def answer(result: Result, folder: Path, failed: dict[Recipe, str]) -> None:
    for case in result.cases.cases:
        reasons = [failed[recipe] for recipe in recipes_of(case) if recipe in failed]
        if reasons:
            result.cases.left_out[f"not recorded: {reasons[0].split(':')[0]}"] += case.runs
        elif case.next_batch:
            result.distances.append((case, interval_distance(case, folder)))
        else:
            result.said.append((case, answered(case, load_tape(cached_at(folder, case.recipe)))))


def interval_distance(case: Case, folder: Path) -> float:
    fits, fails = (needed_bytes(case, load_tape(cached_at(folder, recipe))) for recipe in recipes_of(case))
    return distance(fits, fails, room_bytes(case))


def print_rows(result: Result) -> None:
    for case, far in result.distances:
        sys.stdout.write(f"{result.slice.name}\t{case.name}\t{case.recipe.batch}\t{far:+.4f}\n")
    for case, found in result.said:
        figures = "\t".join(_compared(case.measured_gib[counter], said) for counter, said in found.items())
        sys.stdout.write(f"{result.slice.name}\t{case.name}\t{figures}\n")


def _compared(measured: float, said: float) -> str:
    return f"{measured:.2f} {said:.2f} {said / measured - 1:+.1%}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, required=True, help="the directory of the measurements")
    parser.add_argument("--slice", action="append", choices=[found.name for found in SLICES], help="only this slice")
    parser.add_argument("--every", type=int, default=1, help="only every Nth case of a slice")
    parser.add_argument("--jobs", type=int, default=1, choices=(1, 2), help="processes that record")
    parser.add_argument("--cached", action="store_true", help="record nothing, answer from the cache")
    parser.add_argument("--out", type=Path, help="write the page here")
    parser.add_argument("--rows", action="store_true", help="print each case")
    return parser.parse_args()


if __name__ == "__main__":
    main()
