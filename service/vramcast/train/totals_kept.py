"""What was computed is kept, so an interrupted comparison goes on where it stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from vramcast.train.progress import Progress

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Kept:
    directory: Path
    progress: Progress

    def array(self, name: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        return np.asarray(np.load(self._kept(f"{name}.npy", make, np.save)))

    def network(self, name: str, make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
        """Pickled whole: only this command reads its own files."""
        path = self._kept(f"{name}.pt", make, lambda path, made: torch.save(made, path))
        found: torch.nn.Module = torch.load(path, weights_only=False)
        return found

    def text(self, name: str, make: Callable[[], str]) -> str:
        path = self._kept(f"{name}.txt", make, lambda path, made: path.write_text(made, encoding="utf-8"))
        return path.read_text(encoding="utf-8")

    def _kept(self, name: str, make: Callable[[], _Made], write: Callable[[Path, _Made], object]) -> Path:
        """Written under another name first: an interrupted command leaves nothing that looks finished."""
        path = self.directory / name
        if not path.exists():
            made = self._timed(path.stem, make)
            unfinished = path.with_suffix(f".{os.getpid()}{path.suffix}")  # np.save would add a suffix of its own
            write(unfinished, made)
            unfinished.replace(path)
        return path

    def _timed(self, name: str, make: Callable[[], _Made]) -> _Made:
        started = time.perf_counter()
        self.directory.mkdir(parents=True, exist_ok=True)
        made = make()
        self.progress.say(f"{name}: {time.perf_counter() - started:.0f} s")
        return made
