"""What a walk does next, from random numbers that Hypothesis draws and shrinks.

*Swarm.* Each walk first draws a theme, which kinds of steps it does without, and which it favors. A walk with few kinds
goes deep where a walk with all of them would not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
# Races between binds, pods that end, takeovers, and holds. The rest are walks of any kind.
THEMES = ("binds", "ends", "takeovers", "holds", "any")
# How much likelier a favored kind of step is.
FAVOR = 4


@dataclass(frozen=True, slots=True, repr=False)
class Kind:
    """A kind of step of a walk. Without the needed ones no walk gets anywhere."""

    name: str
    possible: Callable[[Any], object]
    take: Callable[[Any], object]
    weight: int = 2
    themes: str = ""
    needed: bool = False

    def __repr__(self) -> str:
        return self.name


class Choices:
    """Two bytes each. 0 takes the first of what there is to choose from, and so does the end of the bytes."""

    def __init__(self, drawn: bytes) -> None:
        self._drawn = iter(zip(drawn[::2], drawn[1::2], strict=False))
        self.trace: list[str] = []

    def pick(self, choices: Sequence[T]) -> T:
        if len(choices) == 1:
            return choices[0]
        taken = choices[self._next() % len(choices)]
        self.trace.append(getattr(taken, "__name__", None) or str(taken))
        return taken

    def swarm(self, kinds: Sequence[Kind], theme: str) -> dict[Kind, int]:
        """How likely each kind is. One coin decides whether a walk of any kind has it, two whether it is favored."""
        there, favored = self._coins(len(kinds)), self._coins(len(kinds)) & self._coins(len(kinds))
        return {
            kind: kind.weight * (FAVOR if favored >> number & 1 else 1)
            for number, kind in enumerate(kinds)
            if kind.needed or theme in kind.themes or (theme == "any" and there >> number & 1)
        }

    def _coins(self, count: int) -> int:
        bits = 0
        for _ in range(0, count, 16):
            bits = bits << 16 | self._next()
        return bits

    def _next(self) -> int:
        high, low = next(self._drawn, (0, 0))
        return high << 8 | low
