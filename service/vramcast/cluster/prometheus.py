"""Telemetry from a Prometheus: raw samples with their own times, and history as the peak of each step.

An instant query for a plain metric returns the query's time and a value up to five minutes old. A range selector
returns every sample with the time it was taken, so stale samples are recognizable and no peak between two polls is
lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from vramcast.cluster.telemetry import HttpReader, TelemetryUnavailable
from vramcast.hardware.utilization import UtilizationCounter
from vramcast.outcomes import agent_series
from vramcast.outcomes.readings import Frame, Interpreter, Series

# A sample carries the time its scrape began, but is stored when the scrape ends: ten seconds later at most.
_MARGIN_SECONDS: Final = 15.0
_HISTORY_POINTS: Final = 1000

_Ask = Callable[[str, str], list[Series]]


class _Result(msgspec.Struct, frozen=True, gc=False):
    metric: dict[str, str]
    values: list[tuple[float, str]] | None = None
    value: tuple[float, str] | None = None


class _Data(msgspec.Struct, frozen=True, gc=False, rename={"result_type": "resultType"}):
    result_type: str
    # A scalar or a string is not a list of series, so this is decoded once the type is known.
    result: msgspec.Raw = msgspec.Raw(b"[]")


class _Answer(msgspec.Struct, frozen=True, gc=False):
    status: str
    data: _Data | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SeriesNames:
    """Which series to query. `selector`, such as `cluster="a"`, goes between the braces.

    An empty name is not queried.
    """

    memory: str
    utilization: Mapping[UtilizationCounter, str]
    selector: str = ""

    def query(self, name: str) -> str:
        return f"{name}{{{self.selector}}}" if self.selector else name


class PrometheusApi:
    """Instant and range queries. Raises TelemetryUnavailable."""

    def __init__(self, http: HttpReader, url: str) -> None:
        self._http = http
        self._url = url.rstrip("/")

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        fields = {"query": expression} | ({"time": f"{at:.3f}"} if at is not None else {})
        return self._ask("/api/v1/query", fields)

    def query_range(self, expression: str, start: float, end: float, step_seconds: float) -> list[Series]:
        fields = {"query": expression, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_seconds:.3f}"}
        return self._ask("/api/v1/query_range", fields)

    def _ask(self, path: str, fields: dict[str, str]) -> list[Series]:
        body = self._http.get(self._url + path, fields)
        try:
            answer = msgspec.json.decode(body, type=_Answer)
            if answer.status != "success" or answer.data is None:
                raise TelemetryUnavailable(f"{self._url}{path}: {answer.error or 'no data'}")
            if answer.data.result_type not in ("matrix", "vector"):
                raise TelemetryUnavailable(f"{self._url}{path}: expected series, got a {answer.data.result_type}")
            results = msgspec.json.decode(answer.data.result, type=list[_Result])
        except msgspec.MsgspecError as error:
            raise TelemetryUnavailable(f"{self._url}{path}: not a response from Prometheus: {error}") from None
        return [Series(result.metric, _samples(result)) for result in results]


class PrometheusTelemetry:
    """Implements `Telemetry`. `interval_seconds`: how often vramcast polls, and the finest step of history."""

    def __init__(
        self, api: PrometheusApi, metrics: SeriesNames, interpreter: Interpreter, interval_seconds: float
    ) -> None:
        self._api = api
        self._metrics = metrics
        self._interpreter = interpreter
        self._interval_seconds = interval_seconds

    def poll(self, since: float, now: float) -> Frame:
        window = f"[{math.ceil(max(now - since, 0) + _MARGIN_SECONDS)}s]"
        return self._read(lambda name, _: self._api.query(name + window), now)

    def history(self, since: float, now: float) -> Frame:
        step = max(self._interval_seconds, (now - since) / _HISTORY_POINTS, 1.0)

        def peaks(name: str, function: str) -> list[Series]:
            expression = f"{function}({name}[{math.ceil(step)}s])"
            return self._api.query_range(expression, since, now, step)

        return self._read(peaks, now)

    def _read(self, ask: _Ask, now: float) -> Frame:
        """`ask` gets a query and the function that summarizes it over a step of history."""

        def optional(name: str, function: str) -> list[Series]:
            """A failure here must not cost the memory readings."""
            try:
                return ask(self._metrics.query(name), function) if name else []
            except TelemetryUnavailable:
                return []

        memory = ask(self._metrics.query(self._metrics.memory), "max_over_time")
        utilization = {c: optional(name, "avg_over_time") for c, name in self._metrics.utilization.items()}
        agent_memory = optional(agent_series.MEMORY, "max_over_time")
        agent_utilization = optional(agent_series.UTILIZATION, "avg_over_time") if agent_memory else []
        return self._interpreter.read(memory, utilization, now, agent_memory, agent_utilization)


def _samples(result: _Result) -> tuple[tuple[float, float], ...]:
    pairs = result.values if result.values is not None else [result.value] if result.value else []
    return tuple((at, _number(text)) for at, text in pairs)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
