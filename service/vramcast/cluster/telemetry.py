"""The seam to telemetry: somebody who has seen the GPUs, and says what they had in use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import urllib3
from urllib3.exceptions import HTTPError

from vramcast.errors import WorldUnavailable
from vramcast.outcomes.readings import Frame

CONNECT_SECONDS: Final = 3.0
# A scrape or an answer beyond this is not telemetry of any cluster there is.
MAX_BODY_BYTES: Final = 256 << 20


class TelemetryUnavailable(WorldUnavailable):
    """No telemetry: not reachable, refused, or not understood."""


class Telemetry(Protocol):
    """The calls block, are made from worker threads, one at a time, and raise TelemetryUnavailable."""

    def poll(self, since: float, now: float) -> Frame:
        """What was seen after `since` (seconds since the epoch), at least the newest there is."""
        ...

    def history(self, since: float, now: float) -> Frame:
        """What was seen long ago, more coarsely; empty where nobody keeps it."""
        ...


class HttpReader:
    """GET with a deadline, trust and a token, for what is not the API server. `token_file` is read every time: tokens
    rotate."""

    def __init__(self, timeout_seconds: float, ca_file: Path | None = None, token_file: Path | None = None) -> None:
        self._timeout = urllib3.Timeout(connect=min(CONNECT_SECONDS, timeout_seconds), total=timeout_seconds)
        self._token_file = token_file
        trust = str(ca_file) if ca_file else None
        self._pool = urllib3.PoolManager(maxsize=16, retries=False, timeout=self._timeout, ca_certs=trust)

    def get(self, url: str, fields: Mapping[str, str] | None = None, accept: str = "application/json") -> bytes:
        """The body of a 200. Raises TelemetryUnavailable with what was asked and what came back."""
        shown = url.partition("?")[0]
        try:
            # Redirects are not followed: a login page is no telemetry.
            response = self._pool.request(
                "GET", url, fields=dict(fields or {}), headers=self._headers(accept), redirect=False,
                preload_content=False,
            )  # fmt: skip
            try:
                body = response.read(MAX_BODY_BYTES + 1, decode_content=True)
            finally:
                response.release_conn()
        except (HTTPError, OSError, ValueError) as error:
            raise TelemetryUnavailable(f"{shown}: no answer: {error}") from None
        if len(body) > MAX_BODY_BYTES:
            raise TelemetryUnavailable(f"{shown}: the answer is larger than {MAX_BODY_BYTES >> 20} MiB")
        if response.status != 200:
            said = body[:200].decode(errors="replace").strip()
            hint = "; see setting prometheus_token_file" if response.status in (401, 403) else ""
            raise TelemetryUnavailable(f"{shown}: answered {response.status}: {said}{hint}")
        return body

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept, "User-Agent": "vramcast", "Accept-Encoding": "gzip"}
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
        return headers
