"""Steps the wall clock of one process, as NTP or an operator does, through a small preloaded library."""

from __future__ import annotations

import mmap
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock_step.c")


def build_shim(directory: Path) -> Path:
    library = directory / "clock_step.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", library, _SOURCE], check=True)
    return library


class SteppedClock:
    """Start the process with `environment`."""

    def __init__(self, shim: Path, file: Path) -> None:
        file.write_bytes(bytes(8))
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(shim), "CHAOS_CLOCK_FILE": str(file)}
        self.offset_seconds = 0
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), 8)

    def step_to(self, offset_seconds: int) -> None:
        """Relative to the machine's clock."""
        self.offset_seconds = offset_seconds
        self._shared[:] = struct.pack("=q", offset_seconds * 1_000_000_000)
