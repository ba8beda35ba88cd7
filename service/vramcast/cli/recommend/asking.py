"""A Prometheus that is asked long questions: it may be away for a while, or refuse a question as too large."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from vramcast.cluster.prometheus import PrometheusApi
from vramcast.cluster.telemetry import TelemetryUnavailable
from vramcast.errors import WorldUnavailable
from vramcast.outcomes.readings import Series

# A restart of Prometheus with a large write-ahead log takes a minute.
WAITS_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
# Too many samples (422), or too much time (503, 504); proxies say 413 or 500, and 400 for their own limits.
_TOO_LARGE: Final = frozenset({400, 413, 422, 500, 503, 504})
_MISTAKE: Final = "parse error"  # of a selector that a user gave
_LATER: Final = frozenset({429, 502})


class QuestionTooLarge(WorldUnavailable):
    """Prometheus refused it, or took too long: ask for less at a time."""


class PrometheusAway(WorldUnavailable):
    """No answer after several attempts, or one that more attempts do not change."""


class PatientApi:
    """Waits for a Prometheus that does not answer. `most_series`: held at once since it was last reset."""

    def __init__(self, api: PrometheusApi, sleep: Callable[[float], None] = time.sleep) -> None:
        self._api = api
        self._sleep = sleep
        self.most_series = 0

    def query(
        self, expression: str, at: float | None = None, *, waits: Sequence[float] = WAITS_SECONDS
    ) -> list[Series]:
        return self._ask(lambda: self._api.query(expression, at), waits)

    def query_range(self, expression: str, start: float, end: float, step_seconds: float) -> list[Series]:
        return self._ask(lambda: self._api.query_range(expression, start, end, step_seconds), WAITS_SECONDS)

    def _ask(self, question: Callable[[], list[Series]], waits: Sequence[float]) -> list[Series]:
        for wait_seconds in (*waits, None):
            try:
                series = question()
            except TelemetryUnavailable as error:
                if error.timed_out or (error.status in _TOO_LARGE and _MISTAKE not in str(error)):
                    raise QuestionTooLarge(str(error)) from None
                if wait_seconds is None or (error.status is not None and error.status not in _LATER):
                    raise PrometheusAway(str(error)) from None
                self._sleep(wait_seconds)
            else:
                self.most_series = max(self.most_series, len(series))
                return series
        raise AssertionError  # the last attempt returns or raises
