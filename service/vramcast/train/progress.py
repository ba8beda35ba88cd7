"""Progress on the terminal, and how long each stage took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")


class Progress:
    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self.stage_seconds: dict[str, float] = {}  # in the order in which they ended

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def over(self, items: Sequence[T], what: str) -> Iterator[T]:
        yield from track(items, description=what, console=self._console, transient=True)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.stage_seconds[name] = self.stage_seconds.get(name, 0.0) + time.perf_counter() - started
        self.say(f"{name}: {self.stage_seconds[name]:.0f} s")
