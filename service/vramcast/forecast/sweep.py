"""How a task's memory grows with its batch size or sequence length, and the largest value that fits each product.

This is what people ask most. The largest value is searched for, not read off the swept values, so the answer may be
187.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from vramcast.errors import FieldError, InvalidInput, InvalidTask
from vramcast.forecast.forecast import Forecast, Forecaster
from vramcast.forecast.report import usable_mib
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import KEYS, PREFIX, Level

SWEPT = ("batch-size", "sequence-length")
_MOST_POINTS = 200
# The search stops here: it is the vocabulary's limit for both keys.
_MOST = 10**7
# How many values below the crossing are checked one by one.
_LEAST_BELOW, _MOST_BELOW = 8, 32
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)(?::([0-9]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class SweepRange:
    key: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest value that fits a product at the task's risk; None if not even 1 does.

    `next_forecast` is for the first value that does not fit; None if the search found none.
    """

    product: Product
    usable_mib: int
    value: int | None
    forecast: Forecast | None
    next_forecast: Forecast | None


def parse_sweep(text: str) -> SweepRange:
    """`batch-size=8..256` (doubling), `batch-size=8..256:8` (in steps of 8), `batch-size=8,24,48`."""
    key, _, listed = text.partition("=")
    key = key.strip().removeprefix(PREFIX).replace("_", "-")
    if key not in SWEPT:
        raise InvalidInput(f"--sweep {text!r}: expected {' or '.join(SWEPT)}, such as batch-size=8..256")
    values = tuple(dict.fromkeys(_values(listed.strip(), text)))
    if not 2 <= len(values) <= _MOST_POINTS:
        raise InvalidInput(f"--sweep {text!r}: expected 2 to {_MOST_POINTS} values, got {len(values)}")
    for value in values:
        try:
            KEYS[key].parse(str(value))
        except ValueError as error:
            raise InvalidInput(f"--sweep {text!r}: {value}: {error}") from None
    return SweepRange(key, tuple(sorted(values)))


def _values(listed: str, text: str) -> Iterable[int]:
    if match := _RANGE.fullmatch(listed):
        low, high, step = int(match[1]), int(match[2]), int(match[3] or 0)
        if not 0 < low < high <= _MOST or (match[3] and (step < 1 or (high - low) // step >= _MOST_POINTS)):
            raise InvalidInput(
                f"--sweep {text!r}: expected LOW..HIGH or LOW..HIGH:STEP with 0 < LOW < HIGH <= {_MOST} "
                f"and at most {_MOST_POINTS} values, such as 8..256 or 8..256:8"
            )
        return [*range(low, high, step), high] if step else [*_doubled(low, high), high]
    if re.fullmatch(r"[0-9]{1,8}(,[0-9]{1,8})+", listed, re.ASCII):
        return [int(part) for part in listed.split(",")]
    raise InvalidInput(
        f"--sweep {text!r}: expected values such as 8..256 (doubling), 8..256:8 (in steps of 8) or 8,24,48"
    )


def _doubled(low: int, high: int) -> Iterable[int]:
    while low < high:
        yield low
        low *= 2


def swept(task: Task, key: str) -> Callable[[int], Task]:
    """The task at a value. Raises InvalidTask if the description does not show how memory depends on the key."""
    if task.level is Level.GIVEN:
        why = "a fixed amount cannot be swept: describe the task instead"
        raise InvalidTask([FieldError(f"{PREFIX}gpu-memory", f"{task.gpu_memory_mib}Mi", why)])
    if key == "batch-size":
        return lambda value: replace(task, batch_size=value)
    if task.level is not Level.SUMMARY:
        return lambda value: replace(task, sequence_length=value)
    length, activations = task.sequence_length, task.activations
    if length is None or activations is None:
        why = f"expected the sequence length at which {PREFIX}activations was counted"
        raise InvalidTask([FieldError(f"{PREFIX}sequence-length", "", why)])
    assumed = (*task.assumptions, "activations grow in proportion to sequence-length")
    return lambda value: replace(
        task, sequence_length=value, activations=max(1, round(activations * value / length)), assumptions=assumed
    )


def curve(forecaster: Forecaster, task: Task, product: Product, sweep: SweepRange) -> list[Forecast]:
    at = swept(task, sweep.key)
    return [forecaster.forecast(at(value), product) for value in sweep.values]


def find_largest(forecaster: Forecaster, task: Task, product: Product, sweep: SweepRange) -> Largest | None:
    """None if the product's memory is unknown."""
    usable = usable_mib(product)
    if usable is None:
        return None
    at = swept(task, sweep.key)

    def forecast(value: int) -> Forecast:
        return forecaster.forecast(at(value), product)

    def fits(value: int) -> bool:
        return forecast(value).need_mib <= usable

    low, high = _bracket(fits, sweep.values)
    while high is not None and high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    # A learned bound is not quite monotonic, so look for an earlier value near the crossing that does not fit.
    below = range(max(1, low - min(_MOST_BELOW, max(_LEAST_BELOW, low // 16))), low)
    high = next((value for value in below if not fits(value)), high)
    low = high - 1 if high is not None else low
    next_forecast = forecast(high) if high is not None else None
    return Largest(product, usable, low or None, forecast(low) if low else None, next_forecast)


def _bracket(fits: Callable[[int], bool], values: Iterable[int]) -> tuple[int, int | None]:
    """Among the powers of two and the swept values: the last that fits, and the first that does not."""
    powers = (1 << exponent for exponent in range(_MOST.bit_length()))
    probes = [0, *sorted({*values, *(power for power in powers if power <= _MOST), _MOST})]
    for before, probe in pairwise(probes):
        if not fits(probe):
            return before, probe
    return _MOST, None
