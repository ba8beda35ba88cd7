"""Runs the agent until SIGTERM."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType

import structlog

from vramcast.agent.exporter import Looks
from vramcast.agent.nvml import Nvml
from vramcast.agent.server import new_server
from vramcast.errors import VramcastError

log = structlog.get_logger("vramcast.agent")


class PortTaken(VramcastError):
    """Another process listens there."""


def run_agent(node: str, host: str, port: int, proc: Path) -> None:
    nvml = Nvml()
    looks = Looks(nvml, node, proc)
    try:
        server = new_server(looks, host, port)
    except OSError as error:
        raise PortTaken(f"cannot listen on {host}:{port}: {error}") from None

    def stop(_signal: int, _frame: FrameType | None) -> None:
        # shutdown() waits for the loop that this handler interrupts.
        threading.Thread(target=server.shutdown).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    found = looks.look()
    log.info("agent started", node=node, port=server.server_port, gpus=len(found))
    with server:
        server.serve_forever()
    nvml.close()
