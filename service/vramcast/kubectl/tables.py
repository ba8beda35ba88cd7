"""Plain text: tables, sizes, ages. Everything from the cluster is printed without control characters."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

_UNKNOWN = "-"


def write(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def write_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [list(titles), *([visible(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]  # noqa: B905 - Python 3.9 has no `strict`
    for line in lines:
        write("   ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())  # noqa: B905


def visible(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def size(mib: int | None) -> str:
    if mib is None:
        return _UNKNOWN
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def byte_size(count: int) -> str:
    return size(-(-count // (1 << 20)))


def share(part: float | None) -> str:
    return _UNKNOWN if part is None else f"{part:.1%}"


def age(seconds: float | None) -> str:
    """As kubectl writes it, in one unit."""
    if seconds is None:
        return _UNKNOWN
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


def plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
