"""Forecasts for pods that other schedulers bound, made before the event loop needs them.

Such a pod counts at its forecast as soon as its event is applied. A forecast takes milliseconds, and after a restart
there may be hundreds, so the watch's own thread makes them before it passes the event on. Both watches go through
here: whichever brings the second half of a pair, a task or a GPU product, makes the forecast.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from vramcast.cluster.seam import Sink
from vramcast.forecast.forecast import Forecaster
from vramcast.names import PodUid, Product
from vramcast.placement.changes import Change, NodeSeen, PodGone, PodSeen, PodsListed
from vramcast.task.task import Task


class ForecastFirst:
    """A sink in front of another one. Called from several threads; each keeps its own order."""

    def __init__(self, forecaster: Forecaster, sink: Sink) -> None:
        self._forecaster = forecaster
        self._sink = sink
        self._lock = threading.Lock()
        self._tasks: dict[PodUid, Task] = {}
        self._products: set[Product] = set()

    def put(self, changes: Sequence[Change]) -> None:
        with self._lock:
            before = set(self._tasks.values()), set(self._products)
            for change in changes:
                self._note(change)
            tasks, products = set(self._tasks.values()), self._products
            # Most events bring neither a task nor a product, and then there is nothing to forecast.
            new = (tasks, products) != before
            needed = [(task, product) for task in tasks for product in products] if new else []
        for task, product in needed:
            # A task that cannot be forecast is reported when its event is applied.
            with suppress(Exception):
                self._forecaster.forecast(task, product)
        self._sink(changes)

    def _note(self, change: Change) -> None:
        match change:
            case PodSeen(pod) if pod.node is None or pod.finished or pod.task is None or pod.assignment is not None:
                self._tasks.pop(pod.uid, None)
            case PodSeen(pod) if pod.task is not None:
                self._tasks[pod.uid] = pod.task
            case PodGone(uid):
                self._tasks.pop(uid, None)
            case PodsListed(uids, _):
                for uid in self._tasks.keys() - uids:
                    del self._tasks[uid]
            case NodeSeen(node):
                self._products.update(pool.product for pool in node.pools)
