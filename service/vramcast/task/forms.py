"""How the text of an annotation is read: numbers, memory, flags, choices, each with its part of the JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from fractions import Fraction

from vramcast.task.quantity import MIB, ceil_mib, parse_quantity

MAX_GPU_MEMORY_MIB = 1 << 20  # 1 TiB on one GPU: no product comes close, so more is a wrong unit

Value = str | int | float | bool | tuple[int, ...] | StrEnum


@dataclass(frozen=True, slots=True)
class Form:
    """How the text of an annotation is read. `parse` raises ValueError with what was expected.

    The schema's `pattern` or `choices` accept nothing that `parse` refuses, except numbers out of range.
    """

    parse: Callable[[str], Value]
    accepts: str
    pattern: str = ""
    choices: tuple[str, ...] = ()


def one_of(kinds: type[StrEnum], also_called: Mapping[str, str] | None = None) -> Form:
    """`also_called`: the words of other tools for the same thing."""
    listed = f"one of {', '.join(kinds)}"

    def parse(text: str) -> Value:
        word = text.strip().lower()
        try:
            return kinds(word)
        except ValueError:
            raise ValueError(f"expected {listed}{_meant(word, list(kinds), also_called or {})}") from None

    return Form(parse, listed, choices=tuple(kind.value for kind in kinds))


def _meant(word: str, words: list[str], also_called: Mapping[str, str]) -> str:
    near = get_close_matches(word.replace("_", "-")[:40], words, n=1, cutoff=0.6)
    meant = also_called.get(word) or (near[0] if near else "")
    return f" (did you mean {meant}?)" if meant else ""


_COUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:[eE]\+?(\d{1,2}))?\s*([kKmMgGbBtT]?)", re.ASCII)
_COUNT_UNITS = {"": 0, "k": 3, "m": 6, "g": 9, "b": 9, "t": 12}
# Whole numbers as people write them: 25600000, 25.6M, 7B, 7e9. A fraction needs a unit that makes it whole.
_COUNT_PATTERN = r"^([0-9]+([eE][0-9]{1,2})?[kKMGBT]?|[0-9]+\.[0-9]{1,3}[kKMGBT])$"
_FEW = 10


def count(low: int, high: int, example: str) -> Form:
    """A whole number as people write it: 25600000, 25.6M, 7B, 7e9."""
    accepts = f"a whole number from {low} to {high}, such as {example}"

    def parse(text: str) -> Value:
        match = _COUNT.fullmatch(text.strip()) if len(text) <= 40 else None
        if match is None:
            raise ValueError(f"expected {accepts}")
        value = Fraction(match[1]) * Fraction(10) ** (int(match[2] or 0) + _COUNT_UNITS[match[3].lower()])
        if value.denominator != 1 or not low <= value <= high:
            raise ValueError(f"expected {accepts}")
        return int(value)

    if high - low < _FEW:
        return Form(parse, accepts, choices=tuple(str(number) for number in range(low, high + 1)))
    return Form(parse, accepts, _COUNT_PATTERN)


def _parse_memory(text: str) -> Value:
    """MiB, rounded up. A bare `16` means 16 bytes to Kubernetes, which nobody intends."""
    try:
        size_bytes = parse_quantity(text)
    except ValueError as error:
        raise ValueError(f"expected {error}") from None
    if size_bytes <= 0:
        raise ValueError("expected more than nothing, such as 16Gi")
    if size_bytes < MIB:
        meant = f" (did you mean {text.strip()}Gi?)" if text.strip().isdigit() else ""
        raise ValueError(f"that is less than 1Mi: the unit is bytes unless one is given{meant}")
    if ceil_mib(size_bytes) > MAX_GPU_MEMORY_MIB:
        raise ValueError("that is more than any GPU has (1Ti); it is the memory on one GPU, not of the whole job")
    return ceil_mib(size_bytes)


memory = Form(_parse_memory, "a Kubernetes quantity, such as 16Gi", r"^[0-9]+(\.[0-9]+)?(Mi|Gi|M|G)$")


def _parse_flag(text: str) -> Value:
    lowered = text.strip().lower()
    if lowered not in {"true", "false"}:
        raise ValueError('expected "true" or "false" (in quotes: an annotation is a string)')
    return lowered == "true"


flag = Form(_parse_flag, '"true" or "false"', choices=("true", "false"))


def _parse_risk(text: str) -> Value:
    try:
        risk = float(text)
    except ValueError:
        risk = float("nan")
    if not 0.0001 <= risk <= 0.5:
        raise ValueError(f"expected a probability from 0.0001 to 0.5, such as 0.01{_percent(text)}")
    return risk


def _percent(text: str) -> str:
    match = re.fullmatch(r"\s*([0-9]{1,2}(?:\.[0-9]{1,3})?)\s*%\s*", text)
    return f" (did you mean {float(match[1]) / 100:g}?)" if match else ""


risk = Form(_parse_risk, "a probability from 0.0001 to 0.5", r"^0?\.[0-9]+$")


def _parse_slowdown(text: str) -> Value:
    try:
        times = float(text)
    except ValueError:
        times = float("nan")
    if not 1.0 <= times <= 10.0:
        percent = re.fullmatch(r"\s*([0-9]{1,3})\s*%\s*", text)
        meant = f" (did you mean {1 + int(percent[1]) / 100:g}?)" if percent else ""
        raise ValueError(f"expected how many times as long as alone, from 1 to 10, such as 1.3{meant}")
    return times


slowdown = Form(_parse_slowdown, "a number from 1 to 10, such as 1.3", r"^([1-9](\.[0-9]+)?|10)$")


def _parse_dimensions(text: str) -> Value:
    parts = text.strip().lower().split("x")
    if not 1 <= len(parts) <= 5 or not all(re.fullmatch(r"[1-9][0-9]{0,6}", part) for part in parts):
        raise ValueError("expected the size of one sample such as 3x224x224, without the batch")
    return tuple(int(part) for part in parts)


dimensions = Form(
    _parse_dimensions, "the size of one sample such as 3x224x224, without the batch",
    r"^[1-9][0-9]{0,6}(x[1-9][0-9]{0,6}){0,4}$",
)  # fmt: skip


def words(expected: str) -> Form:
    def parse(text: str) -> Value:
        if not text.strip():
            raise ValueError(f"expected {expected}")
        return text.strip()

    return Form(parse, expected, r"\S")


def names_of(groups: tuple[str, ...], spelt_out: Mapping[frozenset[str], str]) -> Form:
    """Module names separated by commas, or a word for a group of them. `spelt_out`: lists that a word stands for."""
    expected = f"{', '.join(groups)}, or names of modules such as q_proj,v_proj"

    def parse(text: str) -> Value:
        names = {name.strip() for name in text.strip().split(",")}
        if not all(name in groups or _MODULE.fullmatch(name) for name in names):
            raise ValueError(f"expected {expected}")
        return spelt_out.get(frozenset(names), ",".join(sorted(names)))

    one = rf"({'|'.join(groups)}|{_MODULE.pattern})"
    return Form(parse, expected, rf"^{one}(,{one})*$")


_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*", re.ASCII)
