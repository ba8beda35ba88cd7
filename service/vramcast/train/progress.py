"""Progress bars on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")


class Progress:
    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def over(self, items: Sequence[T], what: str) -> Iterator[T]:
        yield from track(items, description=what, console=self._console, transient=True)
