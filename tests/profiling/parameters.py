"""Builds every network of the catalog on the meta device and compares its size with the pinned one.

    python -m tests.profiling.parameters [WORD ...]

Takes minutes. The tests build one of each family. Exits with 1 if a count differs.
"""

from __future__ import annotations

import sys

from tests.forecast.parameters import pinned
from vramcast.profile.building import build_network
from vramcast.profile.sources import ModelSource, all_sources


def count(source: ModelSource) -> int:
    return sum(weight.numel() for weight in build_network(source, source.base, "meta").parameters())


def main(words: list[str]) -> int:
    counts, wrong = pinned(), 0
    for source in all_sources():
        if source.name in counts and all(word in source.name for word in words):
            found = count(source)
            if found != counts[source.name].parameters:
                wrong += 1
                print(f"{source.name}: {found}, pinned are {counts[source.name].parameters}")
    print(f"{wrong} counts differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
