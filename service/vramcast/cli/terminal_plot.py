"""Line plots for the terminal, in braille: eight dots per character.

Not plotext: version 6 dropped the whole API of version 5, and 3 MB is a lot for one plot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.text import Text

_DOTS_WIDE, _DOTS_HIGH = 2, 4
_BRAILLE = 0x2800
# The bit of the dot at (column, row) of a character.
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))

Point = tuple[float, float]


@dataclass
class TerminalPlot:
    """Both axes are linear. Later drawings cover earlier ones."""

    width: int  # in characters, without the axes
    height: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    _dots: dict[tuple[int, int], int] = field(default_factory=dict)
    _styles: dict[tuple[int, int], str] = field(default_factory=dict)
    _letters: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    _right: dict[int, tuple[str, str]] = field(default_factory=dict)

    def band(self, lower: Sequence[Point], upper: Sequence[Point], style: str) -> None:
        """Shades the area between two curves with the same x values."""
        for x in range(self._dot_x(lower[0][0]), self._dot_x(lower[-1][0]) + 1):
            bottom, top = (self._dot_y(_height_at(curve, self._x_of_dot(x))) for curve in (lower, upper))
            for y in range(min(bottom, top), max(bottom, top) + 1):
                if (x + 2 * y) % 4 == 0:
                    self._set(x, y, style)

    def line(self, points: Sequence[Point], style: str) -> None:
        for (x1, y1), (x2, y2) in pairwise(points):
            start, end = (self._dot_x(x1), self._dot_y(y1)), (self._dot_x(x2), self._dot_y(y2))
            steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
            for step in range(steps + 1):
                part = step / steps
                self._set(
                    round(start[0] + part * (end[0] - start[0])), round(start[1] + part * (end[1] - start[1])), style
                )

    def level(self, y: float, label: str, style: str) -> None:
        """A dashed line across the plot with its label at the right. Lines on the same row share it."""
        row = self._dot_y(y) // _DOTS_HIGH
        if not 0 <= row < self.height:
            return
        for column in range(self.width):
            self._letters.setdefault((column, row), ("╌", style))
        known = self._right.get(row)
        self._right[row] = (f"{known[0]}, {label}" if known else label, style)

    def mark(self, x: float, y: float, text: str, style: str) -> None:
        """A point with a text on its right, or on its left at the edge."""
        column, row = self._dot_x(x) // _DOTS_WIDE, self._dot_y(y) // _DOTS_HIGH
        if not (0 <= column < self.width and 0 <= row < self.height):
            return
        start = column - len(text) - 1 if column + len(text) + 2 > self.width else column + 1
        for offset, letter in enumerate(text):
            self._letters[start + offset, row] = (letter, style)
        self._letters[column, row] = ("●", style)

    def render(self, x_ticks: Iterable[int], y_unit: str) -> list[Text]:
        labels = self._y_labels()
        gutter = max(len(label) for label in labels.values())
        lines = [Text(f"{y_unit:>{gutter}}", style="dim")]
        for row in range(self.height):
            line = Text(f"{labels.get(row, ''):>{gutter}} ", style="dim")
            line.append("┤" if row in labels else "│", style="dim")
            for column in range(self.width):
                line.append(*self._cell(column, row))
            line.append(*(f" {self._right[row][0]}", self._right[row][1]) if row in self._right else ("", ""))
            lines.append(line)
        return [*lines, *self._x_axis(list(x_ticks), gutter)]

    def _cell(self, column: int, row: int) -> tuple[str, str]:
        letter = self._letters.get((column, row))
        bits = self._dots.get((column, row), 0)
        if bits and (letter is None or letter[0] == "╌"):
            return chr(_BRAILLE + bits), self._styles[column, row]
        return letter or (" ", "")

    def _set(self, x: int, y: int, style: str) -> None:
        column, row = x // _DOTS_WIDE, y // _DOTS_HIGH
        if 0 <= column < self.width and 0 <= row < self.height:
            self._dots[column, row] = self._dots.get((column, row), 0) | _BITS[x % _DOTS_WIDE][y % _DOTS_HIGH]
            self._styles[column, row] = style

    def _y_labels(self) -> dict[int, str]:
        """Round numbers, at most one per three rows."""
        low, high = self.y_range
        step = _round_step((high - low) / max(1, self.height // 3))
        values = [low + step * number for number in range(int((high - low) / step) + 1)]
        return {row: f"{value:g}" for value in values if 0 <= (row := self._dot_y(value) // _DOTS_HIGH) < self.height}

    def _x_axis(self, ticks: list[int], gutter: int) -> list[Text]:
        axis, names = ["─"] * self.width, [" "] * (self.width + 12)
        # From the right, so that of crowded ticks the larger ones remain.
        taken = self.width + 12
        for tick in sorted(ticks, reverse=True):
            column, name = min(self._dot_x(tick) // _DOTS_WIDE, self.width - 1), str(tick)
            start = max(0, column - len(name) // 2)
            if start + len(name) + 1 <= taken:
                axis[column] = "┬"
                names[start : start + len(name)] = name
                taken = start
        blank = " " * gutter
        return [
            Text(f"{blank} └{''.join(axis)}", style="dim"),
            Text(f"{blank}  {''.join(names).rstrip()}", style="dim"),
        ]

    def _dot_x(self, x: float) -> int:
        low, high = self.x_range
        return round((x - low) / (high - low) * (self.width * _DOTS_WIDE - 1))

    def _x_of_dot(self, dot: int) -> float:
        low, high = self.x_range
        return low + dot / (self.width * _DOTS_WIDE - 1) * (high - low)

    def _dot_y(self, y: float) -> int:
        low, high = self.y_range
        return round((high - y) / (high - low) * (self.height * _DOTS_HIGH - 1))


def _height_at(points: Sequence[Point], x: float) -> float:
    for (x1, y1), (x2, y2) in pairwise(points):
        if x1 <= x <= x2:
            return y1 + (y2 - y1) * (x - x1) / (x2 - x1)
    return points[0][1] if x < points[0][0] else points[-1][1]


def _round_step(rough: float) -> float:
    """The next larger of ..., 1, 2, 5, 10, ..."""
    power = 1.0
    while power * 10 <= rough:
        power *= 10
    while power > rough:
        power /= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
