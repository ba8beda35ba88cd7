"""What an RTX 3090 shows beside torch under CUDA 11: chosen on every second AMP interval, judged on the others.

    python -m bench.recordings.context --data DIR

Nobody read it from the GPU of these runs: the driver's reserve, the context and all kernels, which CUDA 11 loaded at
once. Answers from the recordings that `bench.recordings --slice timm-amp` has left in the cache.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean

from bench.recordings.__main__ import recipes_of
from bench.recordings.answers import needed_bytes, room_bytes
from bench.recordings.cases import Case
from bench.recordings.slices import distance, inside
from bench.recordings.taping import cache_folder, cached_at, load_tape
from bench.recordings.vision import timm_intervals

_MIB = range(700, 2801, 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, required=True, help="the directory of the measurements")
    folder = cache_folder()
    needs: list[tuple[Case, int, int]] = []
    for case in timm_intervals(parser.parse_args().data).cases:
        paths = [cached_at(folder, recipe) for recipe in recipes_of(case)]
        if all(path.exists() for path in paths):
            fits, fails = (needed_bytes(case, load_tape(path)) for path in paths)
            needs.append((case, fits, fails))
    chosen_on, judged_on = needs[::2], needs[1::2]
    sys.stdout.write(f"{len(chosen_on)} intervals to choose, {len(judged_on)} to judge: inside; mean distance\n")
    far = {mib: (distances(chosen_on, mib), distances(judged_on, mib)) for mib in _MIB}
    best = min(far, key=lambda mib: (sum(map(bool, far[mib][0])), mean(map(abs, far[mib][0]))))
    for mib, (choosing, judging) in far.items():
        mark = "  <- chosen" if mib == best else ""
        sys.stdout.write(f"{mib:5} MiB: {inside(choosing)}, {inside(judging)}{mark}\n")


def distances(needs: list[tuple[Case, int, int]], context_mib: int) -> list[float]:
    return [distance(fits, fails, room_bytes(replace(case, context_mib=context_mib))) for case, fits, fails in needs]


if __name__ == "__main__":
    main()
