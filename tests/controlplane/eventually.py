"""The only way that tests wait: poll until a condition holds, or fail at a deadline with the last result."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# For everything that tests wait for. It measures nothing and only ends a hang: on a machine that does something else
# as well, what takes a second may take a minute.
PATIENCE_SECONDS = 600.0


def eventually(
    probe: Callable[[], T],
    timeout_seconds: float = PATIENCE_SECONDS,
    what: str = "",
    interval_seconds: float = 0.02,
) -> T:
    """The first truthy result of `probe`. An AssertionError inside it counts as "not yet"."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        failure: AssertionError | None = None
        seen: object = None
        try:
            result = probe()
            if result:
                return result
            seen = result
        except AssertionError as error:
            failure = error
        if time.monotonic() >= deadline:
            label = what or getattr(probe, "__name__", "the condition")
            raise AssertionError(
                f"not within {timeout_seconds:g} s: {label}; last seen: {failure or seen!r}"
            ) from failure
        time.sleep(interval_seconds)
