"""The seam to telemetry: a source that reports how much memory each GPU has in use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError

from vramcast.errors import WorldUnavailable
from vramcast.outcomes.readings import Frame

CONNECT_SECONDS: Final = 3.0
# No cluster's telemetry is this large.
MAX_BODY_BYTES: Final = 256 << 20


class TelemetryUnavailable(WorldUnavailable):
    """No telemetry: unreachable, refused, or malformed. `status`: of the response, if there was one."""

    def __init__(self, message: str, status: int | None = None, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.timed_out = timed_out


class Telemetry(Protocol):
    """Calls block. One worker thread makes them, one at a time. They raise TelemetryUnavailable."""

    def poll(self, since: float, now: float) -> Frame:
        """The samples after `since` (seconds since the epoch), and at least the newest one."""
        ...

    def history(self, since: float, now: float) -> Frame:
        """Older samples, more coarsely; empty where the source keeps none."""
        ...


class HttpReader:
    """GET with a timeout, a CA, a token and headers, for servers other than the API server. Reads `token_file` for
    every request, because tokens rotate. `unauthorized_hint`: what a user can do."""

    def __init__(
        self,
        timeout_seconds: float,
        ca_file: Path | None = None,
        token_file: Path | None = None,
        headers: Mapping[str, str] | None = None,
        unauthorized_hint: str = "see setting prometheus_token_file",
    ) -> None:
        self._timeout = urllib3.Timeout(connect=min(CONNECT_SECONDS, timeout_seconds), total=timeout_seconds)
        self._token_file = token_file
        self._more_headers = dict(headers or {})
        self._unauthorized_hint = unauthorized_hint
        trust = str(ca_file) if ca_file else None
        self._pool = urllib3.PoolManager(maxsize=16, retries=False, timeout=self._timeout, ca_certs=trust)

    def get(self, url: str, fields: Mapping[str, str] | None = None, accept: str = "application/json") -> bytes:
        """The body of a 200. Raises TelemetryUnavailable, which names the URL and the response."""
        shown = url.partition("?")[0]
        try:
            # No redirects: they lead to login pages.
            response = self._pool.request(
                "GET", url, fields=dict(fields or {}), headers=self._headers(accept), redirect=False,
                preload_content=False,
            )  # fmt: skip
            try:
                body = response.read(MAX_BODY_BYTES + 1, decode_content=True)
            finally:
                response.release_conn()
        except (HTTPError, OSError, ValueError) as error:
            timed_out = isinstance(error, ReadTimeoutError)
            raise TelemetryUnavailable(f"{shown}: no answer: {error}", timed_out=timed_out) from None
        if len(body) > MAX_BODY_BYTES:
            raise TelemetryUnavailable(f"{shown}: the answer is larger than {MAX_BODY_BYTES >> 20} MiB", 413)
        if response.status != 200:
            said = body[:200].decode(errors="replace").strip()
            hint = f"; {self._unauthorized_hint}" if response.status in (401, 403) else ""
            raise TelemetryUnavailable(f"{shown}: answered {response.status}: {said}{hint}", response.status)
        return body

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept, "User-Agent": "vramcast", "Accept-Encoding": "gzip", **self._more_headers}
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
        return headers
