"""The compiled replay loop, where the build had a C compiler: `service/build_hook.py` puts it beside this file."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIBRARY = Path(__file__).with_name("_allocator.so")
_RESULTS = 6


@lru_cache(maxsize=1)
def compiled_loop() -> Any | None:
    """The function of `allocator.c`, or None if it was not compiled, or for another machine."""
    try:
        loop = ctypes.CDLL(str(LIBRARY)).vramcast_replay
    except (OSError, AttributeError):
        return None
    array = ctypes.c_void_p
    loop.argtypes = [ctypes.c_int64, array, array, array, ctypes.c_int64, ctypes.c_int32, array, array, array]
    return loop


def replay_compiled(
    loop: Any, events: NDArray[np.int32], grains: NDArray[np.int64], streams: NDArray[np.uint8], capacity: int,
    expandable: bool, curve: NDArray[np.int64] | None,
) -> tuple[int, ...]:  # fmt: skip
    """Peak active, its event, peak reserved, its event, retries, the event that failed; grains, and -1 for no event.

    The arrays must belong to a checked tape: the loop trusts them. `curve` (events, 2), if given, is filled.
    """
    events = np.ascontiguousarray(events, np.int32)
    grains = np.ascontiguousarray(grains, np.int64)
    streams = np.ascontiguousarray(streams, np.uint8)
    held = np.empty(len(grains), np.int32)
    result = np.empty(_RESULTS, np.int64)
    failed = loop(
        len(events), events.ctypes.data, grains.ctypes.data, streams.ctypes.data if len(streams) else None, capacity,
        expandable, held.ctypes.data, None if curve is None else curve.ctypes.data, result.ctypes.data,
    )  # fmt: skip
    if failed:
        raise MemoryError("the replay of a tape needs more memory than the process has")
    return tuple(result.tolist())
