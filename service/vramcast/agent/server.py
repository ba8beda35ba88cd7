"""Serves /metrics and /healthz, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from vramcast.agent.exporter import Looks

# A client that sends or reads more slowly is dropped.
_TIMEOUT_SECONDS = 10.0


def new_server(looks: Looks, host: str, port: int) -> ThreadingHTTPServer:
    """Raises OSError if the port is taken."""
    registry = CollectorRegistry()
    registry.register(looks)

    def metrics() -> tuple[int, str, bytes]:
        return 200, CONTENT_TYPE_LATEST, generate_latest(registry)

    def health() -> tuple[int, str, bytes]:
        looks.look()
        text = "ok" if looks.healthy else "NVML does not answer"
        return 200 if looks.healthy else 503, "text/plain; charset=utf-8", f"{text}\n".encode()

    pages: dict[str, Callable[[], tuple[int, str, bytes]]] = {"/metrics": metrics, "/healthz": health}

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_SECONDS
        server_version, sys_version = "vramcast", ""

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            status, kind, body = page() if page is not None else (404, "text/plain; charset=utf-8", b"not found\n")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """No line for every scrape."""

    class AgentServer(ThreadingHTTPServer):
        daemon_threads = True

    return AgentServer((host, port), Handler)
