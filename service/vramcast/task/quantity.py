"""Kubernetes quantities, exactly: `16Gi`, `1500M`, `2e9`, `0.5Ti`.

Floats would round: 0.1Ti is not a whole number of bytes, and a promise must never be a byte smaller than what
was asked. So a quantity becomes a Fraction, and rounding up is the last step.
"""

from __future__ import annotations

import re
from fractions import Fraction

MIB = 1 << 20
GIB = 1 << 30

_SUFFIXES: dict[str, Fraction] = {
    "": Fraction(1),
    **{
        s: Fraction(10) ** e
        for s, e in {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}.items()
    },
    **{s: Fraction(2) ** e for s, e in {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}.items()},
}
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:[eE](?P<exponent>[+-]?\d{1,3})|(?P<suffix>[a-zA-Z]{0,2}))",
    re.ASCII,  # Kubernetes accepts only ASCII digits
)

# Common misspellings of Kubernetes units.
_COMMON_MISTAKES = {
    "kb": "k", "mb": "M", "gb": "G", "tb": "T", "kib": "Ki", "mib": "Mi", "gib": "Gi", "tib": "Ti",
    "g": "G", "t": "T", "gi": "Gi", "mi": "Mi", "ki": "Ki", "ti": "Ti", "b": "",
}  # fmt: skip

# Longer input is an attack on the Fraction arithmetic, not a number.
MAX_LENGTH = 40


def parse_quantity(text: str) -> Fraction:
    """The exact value. ValueError names the mistake and, if it can be guessed, the correct spelling."""
    stripped = text.strip()
    if len(stripped) > MAX_LENGTH:
        raise ValueError("a Kubernetes quantity such as 16Gi, at most 40 characters long")
    match = _QUANTITY.fullmatch(stripped)
    suffix = (match["suffix"] or "") if match else ""
    if match is None or suffix not in _SUFFIXES:
        raise ValueError(f"a Kubernetes quantity such as 16Gi{_did_you_mean(stripped)}")
    number = Fraction(match["number"])
    return number * (Fraction(10) ** int(match["exponent"]) if match["exponent"] else _SUFFIXES[suffix])


def quantity_bytes(text: str) -> int:
    """Whole bytes, rounded up."""
    return ceil_div(parse_quantity(text), 1)


def ceil_mib(size_bytes: int | Fraction) -> int:
    """Needs round up to whole MiB: the unit of every promise."""
    return ceil_div(size_bytes, MIB)


def ceil_div(value: int | Fraction, unit: int) -> int:
    return -int(-value // unit)


def format_mib(mib: int) -> str:
    """The shortest exact quantity, as written into annotations."""
    return f"{mib // 1024}Gi" if mib and mib % 1024 == 0 else f"{mib}Mi"


def human_mib(mib: int) -> str:
    """For people: `11.4 GiB`, `512 MiB`."""
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def _did_you_mean(text: str) -> str:
    match = re.fullmatch(r"([+-]?[0-9.]+)\s*([a-zA-Z]{1,4})", text)
    meant = _COMMON_MISTAKES.get(match[2].lower()) if match else None
    if match is None or meant is None:
        return ""
    # GPU vendors write 16 GB and mean 16Gi, which is 7 % more than 16G.
    binary = f" or {match[1]}{meant}i, as GPUs are sized?" if meant in ("M", "G", "T") else ""
    return f" (did you mean {match[1]}{meant}?{binary})"
