"""How many gathers ZeRO-3's host runs ahead of the GPU: chosen on every second run, judged on the others.

    python -m bench.recordings.ahead --data DIR

DeepSpeed's code limits what it prefetches, not how far computation lags behind, so this number has to come from runs.
Answers from the recordings that `bench.recordings --slice zero` has left in the cache.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

from bench.recordings.answers import answered
from bench.recordings.cases import Case, Counters
from bench.recordings.language import zero
from bench.recordings.taping import cache_folder, cached_at, load_tape

from vramcast.forecast.rank_view import Scheme
from vramcast.forecast.zero import ShardedZeroView

_LIMITS = (2, 4, 6, 8, 12, 16, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, required=True, help="the directory of the measurements")
    folder = cache_folder()
    cases = [case for case in zero(parser.parse_args().data).cases if case.plan and case.plan.scheme is Scheme.ZERO_3]
    cases = [case for case in cases if cached_at(folder, case.recipe).exists()]
    chosen_on, judged_on = cases[::2], cases[1::2]
    sys.stdout.write(f"{len(chosen_on)} runs to choose, {len(judged_on)} to judge: median error of active memory\n")
    errors = {limit: (error(chosen_on, limit, folder), error(judged_on, limit, folder)) for limit in _LIMITS}
    best = min(errors, key=lambda limit: errors[limit][0])
    for limit, (choosing, judging) in errors.items():
        mark = "  <- chosen" if limit == best else ""
        sys.stdout.write(f"{limit:3} gathers ahead: {choosing:.1%}, {judging:.1%}{mark}\n")


def error(cases: list[Case], limit: int, folder: Path) -> float:
    ShardedZeroView.in_flight_limit = limit
    return median(
        abs(answered(case, load_tape(cached_at(folder, case.recipe)))[Counters.ACTIVE] / measured - 1)
        for case in cases
        if (measured := case.measured_gib[Counters.ACTIVE])
    )


if __name__ == "__main__":
    main()
