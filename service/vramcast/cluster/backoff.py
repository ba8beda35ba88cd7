"""How long to wait before the next try: longer every time, and never in step with others."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles from `first_seconds` to `longest_seconds`; `jitter` (0 to 1) takes off up to half."""

    first_seconds: float = 0.1
    longest_seconds: float = 10.0
    jitter: Callable[[], float] = random.random

    def delay_seconds(self, failures: int) -> float:
        """After so many failures in a row; none before the first."""
        if failures <= 0:
            return 0.0
        # The exponent is bounded because an outage of days would overflow a float.
        ceiling = min(self.longest_seconds, self.first_seconds * 2.0 ** min(failures - 1, 32))
        return ceiling * (1.0 - self.jitter() / 2)
