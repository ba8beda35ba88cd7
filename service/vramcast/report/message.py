"""The termination message: a file that the kubelet reads when the container has ended.

The report is its last line, behind whatever the job wrote there. Several processes of one container add to one report,
each under a lock.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any

# The kubelet keeps this much of a container's message.
MOST_BYTES = 4096
VERSION = 1
_KEY = "vramcast"
_DEFAULT_PATH = "/dev/termination-log"


def path_of_message() -> str | None:
    """None outside of Kubernetes, where nobody would read it."""
    named = os.environ.get("VRAMCAST_REPORT_FILE")
    if named:
        return named
    return _DEFAULT_PATH if os.path.exists(_DEFAULT_PATH) else None


def add(path: str, process: str, facts: dict[str, Any]) -> None:
    """The facts of one process replace what it said before. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # The kubelet mounts this one file, so it can only be rewritten in place.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        said, report = split(_read(descriptor))
        report[_KEY] = VERSION
        report.setdefault("processes", {})[process] = facts
        content = _fitted(said, report)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def split(message: bytes) -> tuple[bytes, dict[str, Any]]:
    """What the job itself said, and the report, which is empty if there is none."""
    said, _, last = message.rstrip(b"\n").rpartition(b"\n")
    try:
        report = json.loads(last)
    except ValueError:
        return message, {}
    if isinstance(report, dict) and report.get(_KEY) == VERSION and isinstance(report.get("processes"), dict):
        return said + b"\n" if said else b"", report
    return message, {}


def _read(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, 16 * MOST_BYTES)


def _fitted(said: bytes, report: dict[str, Any]) -> bytes:
    """The fullest processes stay if there are too many. What the job said gives way to the report, from its start."""
    processes = report["processes"]
    while True:
        line = json.dumps(report, separators=(",", ":")).encode()
        if len(line) <= MOST_BYTES or len(processes) <= 1:
            break
        least = min(processes, key=lambda name: _reserved(processes[name]))
        del processes[least]
        report["left_out"] = report.get("left_out", 0) + 1
    if said and not said.endswith(b"\n"):
        said += b"\n"
    room = MOST_BYTES - len(line)
    return (said[-room:] if room > 0 else b"") + line


def _reserved(facts: dict[str, Any]) -> int:
    return max([int(gpu.get("reserved", 0)) for gpu in facts.get("gpus", {}).values()], default=0)
