"""The compiled loops, where the build had a C compiler: `service/build_hook.py` puts it beside this file."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidInput
from vramcast.forecast.warnings import warn

LIBRARY = Path(__file__).with_name("_allocator.so")
_RESULTS = 6
_TOO_SCATTERED = 2


@lru_cache(maxsize=1)
def compiled_loops() -> Any | None:
    """The functions of `allocator.c`, or None if it was not compiled, or for another machine."""
    array = ctypes.c_void_p
    try:
        loops = ctypes.CDLL(str(LIBRARY))
        loops.vramcast_peaks.argtypes = [
            ctypes.c_int64, array, ctypes.c_int64, array, array, ctypes.c_int64, ctypes.c_int32, array, array,
        ]  # fmt: skip
        loops.vramcast_number.argtypes = [ctypes.c_int64, array, array, array]
        loops.vramcast_number.restype = ctypes.c_int64
    except OSError:
        return None
    except AttributeError as error:
        warn(
            "the compiled allocator is of another version: replays run in Python until it is built again",
            why=str(error),
        )
        return None
    return loops


def number_compiled(loops: Any, events: NDArray[np.int32], storages: int) -> NDArray[np.int64] | None:
    """Numbers storages in the order in which they are made, in place. Their former numbers; None: invalid events."""
    numbers, order = np.full(storages, -1, np.int32), np.empty(storages, np.int64)
    made = loops.vramcast_number(len(events), events.ctypes.data, numbers.ctypes.data, order.ctypes.data)
    return None if made < 0 else order[:made]


def replay_compiled(
    loops: Any, events: NDArray[np.int32], sizes: NDArray[np.int64], streams: NDArray[np.uint8], capacity: int,
    expandable: bool, curve: NDArray[np.int64] | None,
) -> tuple[int, ...]:  # fmt: skip
    """Peak active, its event, peak reserved, its event, retries, the event that failed; grains, and -1 for no event.

    `sizes` in bytes, `capacity` in grains. The arrays must belong to a checked tape: the loop trusts them. `curve`
    (events, 2), if given, is filled.
    """
    events = np.ascontiguousarray(events, np.int32)
    sizes = np.ascontiguousarray(sizes, np.int64)
    streams = np.ascontiguousarray(streams, np.uint8)
    result = np.empty(_RESULTS, np.int64)
    failed = loops.vramcast_peaks(
        len(events), events.ctypes.data, len(sizes), sizes.ctypes.data, streams.ctypes.data if len(streams) else None,
        capacity, expandable, None if curve is None else curve.ctypes.data, result.ctypes.data,
    )  # fmt: skip
    if failed == _TOO_SCATTERED:
        raise InvalidInput("its frees leave more free blocks of one size, in more disorder, than training steps do")
    if failed:
        raise MemoryError("the replay of a tape needs more memory than the process has")
    return tuple(result.tolist())
