"""Telemetry straight from the GPU vendors' exporters, for clusters without a Prometheus.

A host name means every address that it resolves to: the headless Service of a DaemonSet names all its pods.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from prometheus_client.parser import text_string_to_metric_families

from vramcast.cluster.telemetry import HttpReader, TelemetryUnavailable
from vramcast.hardware.utilization import UtilizationCounter
from vramcast.outcomes import agent_series
from vramcast.outcomes.readings import Frame, Interpreter, Series

_TEXT: Final = "text/plain; version=0.0.4"
_AT_ONCE: Final = 16

Resolve = Callable[[str], Sequence[str]]


def addresses_of(host: str) -> list[str]:
    """Raises OSError."""
    return sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})


class ExporterTelemetry:
    """Implements `Telemetry`: every poll scrapes every exporter once. There is no history."""

    def __init__(
        self, http: HttpReader, urls: Sequence[str], memory: str, utilization: Mapping[UtilizationCounter, str],
        interpreter: Interpreter, resolve: Resolve = addresses_of,
    ) -> None:  # fmt: skip
        self._http = http
        self._urls = tuple(urls)
        self._memory = memory
        self._utilization = utilization
        self._interpreter = interpreter
        self._resolve = resolve

    def poll(self, since: float, now: float) -> Frame:  # noqa: ARG002 - an exporter knows only the present
        targets = sorted({target for url in self._urls for target in self._targets(url)})
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="scrape") as threads:
            texts = list(threads.map(self._scrape, targets))
        errors = [text for text in texts if isinstance(text, TelemetryUnavailable)]
        if errors and len(errors) == len(texts):
            raise errors[0]
        lines = [line for text in texts if isinstance(text, str) for line in text.splitlines()]
        names = (self._memory, agent_series.MEMORY, agent_series.UTILIZATION)
        memory, agent_memory, agent_utilization = (read_exposition(lines, name, now) for name in names)
        utilization = {counter: read_exposition(lines, name, now) for counter, name in self._utilization.items()}
        return self._interpreter.read(memory, utilization, now, agent_memory, agent_utilization)

    def history(self, since: float, now: float) -> Frame:  # noqa: ARG002
        return Frame()

    def _targets(self, url: str) -> list[str]:
        parts = urlsplit(url)
        try:
            hosts = self._resolve(parts.hostname or "")
        except OSError as error:
            raise TelemetryUnavailable(f"{url}: cannot resolve the host: {error}") from None
        port = f":{parts.port}" if parts.port else ""
        path = parts.path if parts.path not in ("", "/") else "/metrics"
        shown = [f"[{host}]" if ":" in host else host for host in hosts]
        return [urlunsplit((parts.scheme, host + port, path, parts.query, "")) for host in shown]

    def _scrape(self, url: str) -> str | TelemetryUnavailable:
        """An exporter that does not answer costs only its own node's telemetry."""
        try:
            return self._http.get(url, accept=_TEXT).decode(errors="replace")
        except TelemetryUnavailable as error:
            return error


def read_exposition(lines: Iterable[str], metric: str, at: float) -> Iterator[Series]:
    """The series of one metric. Skips malformed lines: the parser gets one line at a time, so each fails alone."""
    for line in lines:
        if not metric or not line.startswith(metric):
            continue
        try:
            samples = [sample for family in text_string_to_metric_families(line) for sample in family.samples]
            yield from (Series(s.labels, ((at, float(s.value)),)) for s in samples if s.name == metric)
        except (ValueError, OverflowError):
            continue
