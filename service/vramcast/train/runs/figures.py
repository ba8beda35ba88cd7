"""The measured figures of a row, and why some cannot be believed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from vramcast.forecast.counters import Counter
from vramcast.hardware.products import memory_mib
from vramcast.task.quantity import GIB, MIB
from vramcast.train.runs.counters import counter
from vramcast.train.runs.words import LeftOut, named_product

Row = Mapping[str, str]
_LEAST_GIB, _MOST_GIB = 0.05, 2000.0
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
# GB and MB are written for both kinds.
_UNITS = {"b": (1, 1), "m": (10**6, MIB), "g": (10**9, GIB)}
_UNIT = re.compile(r"(?:([gm])(?:i?b)?|(b)ytes)\b")
_AGREES = 1.1
_MORE_THAN_THE_DEVICE = 1.02


def figures(row: Row) -> dict[Counter, float]:
    """GiB by counter. Raises LeftOut."""
    found: dict[Counter, float] = {}
    for figure, kind in (("mem_gib", "mem_kind"), ("mem_gib_2", "mem_kind_2")):
        counted = counter(row[kind]) if row[figure] else None
        if counted is None or counted in found:
            continue
        try:
            gib = float(row[figure])
        except ValueError as error:
            raise LeftOut("a figure that is no number") from error
        if not _LEAST_GIB <= gib <= _MOST_GIB:
            raise LeftOut("an impossible figure")
        found[counted] = gib
    if not found:
        raise LeftOut("counter not stated, or not of the training run")
    if _contradicts(row):
        raise LeftOut("mixed units")
    allocated, device = found.get(Counter.ALLOCATED), found.get(Counter.DEVICE, found.get(Counter.RESERVED))
    if allocated and device and allocated > _MORE_THAN_THE_DEVICE * device:
        raise LeftOut("tensors that take more than the device shows")
    return found


def _contradicts(row: Row) -> bool:
    """Whether the source's own figure, in its own unit, is another one. Some cells have a time or a size beside it."""
    numbers, unit = _NUMBER.findall(row["mem_raw"]), _UNIT.match(row["mem_unit"].lower())
    if not numbers or unit is None or not row["mem_gib"]:
        return False
    sizes = [float(number) * factor / GIB for number in numbers for factor in _UNITS[unit[1] or unit[2]]]
    return not any(1 / _AGREES < size / float(row["mem_gib"]) < _AGREES for size in sizes)


def check_room(found: Mapping[Counter, float], gpu: str) -> None:
    """Raises LeftOut for a figure that the GPU cannot have shown, if the row names the GPU."""
    product = named_product(gpu)
    memory = None if product is None else memory_mib(product)
    if memory is not None and any(gib * GIB > memory * MIB for gib in found.values()):
        raise LeftOut("more than the GPU has")


def is_percentile(row: Row) -> bool:
    """Such a figure is the peak only if every step takes as much."""
    return any("99th pct" in row[kind] for kind in ("mem_kind", "mem_kind_2") if counter(row[kind]) is not None)
