"""Threads for blocking calls: one pool per kind of work, so that a slow Prometheus cannot delay a bind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

# Runs a blocking call on a worker thread: the event loop never waits for the network.
Offload = Callable[..., Awaitable[Any]]

# A takeover patches every pending pod, and should not take long.
_MAINTENANCE = 16
# As many as `run_endings` reads at once, and some for polls and the candidate model.
_TELEMETRY = 20
# These compute. More threads than cores would only share them.
_FORECASTS = 2
_INSPECTION = 2
# One: pods of a large job are admitted together, and the scheduler's own forecasts need the other core.
_ADMISSION = 1


@dataclass(frozen=True, slots=True)
class Workers:
    binds: Offload  # Bindings, and pods that have to be read for them
    lease: Offload
    forecasts: Offload  # for the scheduler, which waits for them
    maintenance: Offload  # requeues, unconfirmed binds, takeovers, learned state, certificates
    telemetry: Offload  # polls, how runs ended, the candidate model
    inspection: Offload  # /forecast and /explain
    admission: Offload  # forecasts for the webhook

    @classmethod
    def all(cls, offload: Offload) -> Workers:
        """Everything on one pool: for tests."""
        return cls(offload, offload, offload, offload, offload, offload, offload)


@contextmanager
def start_workers(binds: int) -> Iterator[Workers]:
    """Threads start when they are needed. At the end, calls under way are finished and waiting ones are dropped."""
    with ExitStack() as pools:

        def pool(name: str, size: int) -> Offload:
            executor = ThreadPoolExecutor(size, thread_name_prefix=name)
            pools.callback(executor.shutdown, cancel_futures=True)

            async def offload(call: Callable[..., Any], *arguments: Any) -> Any:
                return await asyncio.get_running_loop().run_in_executor(executor, call, *arguments)

            return offload

        yield Workers(
            binds=pool("bind", binds),
            lease=pool("lease", 1),
            forecasts=pool("forecast", _FORECASTS),
            maintenance=pool("maintenance", _MAINTENANCE),
            telemetry=pool("telemetry", _TELEMETRY),
            inspection=pool("inspection", _INSPECTION),
            admission=pool("admission", _ADMISSION),
        )
