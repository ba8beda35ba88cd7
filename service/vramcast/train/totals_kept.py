"""What was computed is kept, so an interrupted comparison goes on where it stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vramcast.train.progress import Progress


@dataclass(frozen=True, slots=True)
class Kept:
    directory: Path
    progress: Progress

    def array(self, name: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        path = self.directory / f"{name}.npy"
        if not path.exists():
            made = self._timed(name, make)
            unfinished = path.with_suffix(f".{os.getpid()}.npy")
            np.save(unfinished, made)
            unfinished.replace(path)
        return np.asarray(np.load(path))

    def network(self, name: str, make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
        """Pickled whole: only this command reads its own files."""
        path = self.directory / f"{name}.pt"
        if not path.exists():
            made = self._timed(name, make)
            unfinished = path.with_suffix(f".{os.getpid()}")
            torch.save(made, unfinished)
            unfinished.replace(path)
        found: torch.nn.Module = torch.load(path, weights_only=False)
        return found

    def text(self, name: str, make: Callable[[], str]) -> str:
        path = self.directory / f"{name}.txt"
        if not path.exists():
            path.write_text(self._timed(name, make), encoding="utf-8")
        return path.read_text(encoding="utf-8")

    def _timed(self, name: str, make: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        self.directory.mkdir(parents=True, exist_ok=True)
        made = make()
        self.progress.say(f"{name}: {time.perf_counter() - started:.0f} s")
        return made
