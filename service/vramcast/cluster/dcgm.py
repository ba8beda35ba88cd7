"""Telemetry straight from dcgm-exporters, where no Prometheus keeps it.

A host name stands for every address that it resolves to: the headless Service of a DaemonSet names all its pods.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from vramcast.cluster.telemetry import HttpReader, TelemetryUnavailable
from vramcast.outcomes.readings import Frame, Interpreter, Series

_TEXT: Final = "text/plain; version=0.0.4"
_AT_ONCE: Final = 16
_LINE: Final = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*")
_LABEL: Final = re.compile(r'([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?\s*')
_ESCAPED: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Resolve = Callable[[str], Sequence[str]]


def addresses_of(host: str) -> list[str]:
    """Raises OSError."""
    return sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})


class DcgmTelemetry:
    """Implements `Telemetry`: one scrape of every exporter per look. There is no history."""

    def __init__(
        self, http: HttpReader, urls: Sequence[str], memory: str, utilization: str, interpreter: Interpreter,
        resolve: Resolve = addresses_of,
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
        memory = list(read_exposition(lines, self._memory, now))
        return self._interpreter.read(memory, read_exposition(lines, self._utilization, now), now)

    def history(self, since: float, now: float) -> Frame:  # noqa: ARG002
        return Frame()

    def _targets(self, url: str) -> list[str]:
        parts = urlsplit(url)
        try:
            hosts = self._resolve(parts.hostname or "")
        except OSError as error:
            raise TelemetryUnavailable(f"{url}: cannot find the host: {error}") from None
        port = f":{parts.port}" if parts.port else ""
        path = parts.path if parts.path not in ("", "/") else "/metrics"
        shown = [f"[{host}]" if ":" in host else host for host in hosts]
        return [urlunsplit((parts.scheme, host + port, path, parts.query, "")) for host in shown]

    def _scrape(self, url: str) -> str | TelemetryUnavailable:
        """An exporter that is away takes only its own node along."""
        try:
            return self._http.get(url, accept=_TEXT).decode(errors="replace")
        except TelemetryUnavailable as error:
            return error


def read_exposition(lines: Iterable[str], metric: str, at: float) -> Iterator[Series]:
    """The series of one metric. A line that is not in the format is passed over: the others are."""
    for line in lines:
        if not metric or not line.startswith(metric):
            continue
        found = _LINE.fullmatch(line)
        if found is None or found["name"] != metric:
            continue
        labels = {name: _unescape(value) for name, value in _LABEL.findall(found["labels"] or "")}
        yield Series(labels, ((at, _number(found["value"])),))


def _unescape(text: str) -> str:
    return re.sub(r'\\[\\"n]', lambda match: _ESCAPED[match[0]], text) if "\\" in text else text


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
