"""`python -m tests.machine.search 2000 7`: that many walks from that seed, without shrinking what is found."""

from __future__ import annotations

import sys
import traceback

import structlog
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.machine.take import CHOICES, take_walk


def search(walks: int, start: int) -> tuple[int, Exception | None]:
    """The number of walks taken, and what the last one found."""
    taken = 0

    @seed(start)
    @settings(
        max_examples=walks, deadline=None, database=None, phases=[Phase.generate], report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(CHOICES)
    def walk(choices: bytes) -> None:
        nonlocal taken
        taken += 1
        take_walk(choices)

    try:
        walk()
    except Exception as error:
        return taken, error
    return taken, None


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    taken, found = search(int(sys.argv[1]), int(sys.argv[2]))
    if found is not None:
        traceback.print_exception(found)
        sys.exit(f"found in {taken} walks")
