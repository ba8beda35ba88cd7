"""The load: pods that come in batches, live for some seconds and go, with edits and deletions at any time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from tests.controlplane import PodState
from tests.controlplane.objects import Json, shared_pod

from .audit import by_batch
from .stage import SCHEDULER, UNAVAILABLE, Stage

BATCH = 20
# Pods that wait, so that the scheduler always has something to do.
BACKLOG = 40
# The part of all GPU memory that is promised. Best fit fills single GPUs to the brim all the same.
FILL = 0.75
_PODS = "/api/v1/namespaces/default/pods"
_TICK_SECONDS = 0.05
_NOISE_SECONDS = 0.5
_MODELS = ("timm/resnet50", "timm/vit_base_patch16_224", "timm/efficientnet_b0", "timm/convnext_tiny")


class Load:
    """Runs in two threads between `start` and `stop`."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage = stage
        self._draw = random.Random(seed)
        self._noise_draw = random.Random(seed + 1)
        self._batches = 0
        self._stopping = threading.Event()
        self.keeps_creating = True
        self.keeps_deleting = True
        self.failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(step, seconds), name=step.__name__, daemon=True)
            for step, seconds in ((self._feed, _TICK_SECONDS), (self._make_noise, _NOISE_SECONDS))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, step: Callable[[], None], seconds: float) -> None:
        while not self._stopping.wait(seconds):
            try:
                step()
            except UNAVAILABLE:
                # The API server is away, or the pod is. The next step decides by what is there then.
                continue
            except BaseException as error:  # the run reads it and stops
                self.failure = error
                return

    # --- pods come and go

    def _feed(self) -> None:
        pending, bound = self._stage.audit.pods()
        if self.keeps_creating and len(pending) < BACKLOG:
            self._batches += 1
            self._stage.api.create_pods(self._pod(number) for number in range(BATCH))
        if self.keeps_deleting and self._too_full():
            self._delete_batch(bound)

    def _too_full(self) -> bool:
        audit = self._stage.audit
        return audit.promised_bytes() > FILL * audit.capacity_bytes or not self.keeps_creating

    def _delete_batch(self, bound: list[PodState]) -> None:
        """Only pods that are bound. A pod that was never bound stays until it is, or counts as stuck."""
        batches = list(by_batch(bound))
        if not batches:
            return
        batch = self._draw.choice(batches[: len(batches) // 2 + 1])
        query: dict[str, str | int] = {
            "labelSelector": f"batch={batch}",
            "fieldSelector": "spec.nodeName!=",
            "gracePeriodSeconds": 0,
        }
        self._stage.api.request("DELETE", _PODS, query=query)

    def _pod(self, number: int) -> Json:
        draw, batch = self._draw, f"b{self._batches}"
        name, labels = f"{batch}-{number}", {"batch": batch}
        kind = draw.random()
        if kind < 0.1:
            task = {"model": draw.choice(_MODELS), "batch-size": draw.choice(("16", "32", "64"))}
            return shared_pod(name, None, annotations=task, scheduler=SCHEDULER, labels=labels)
        gpus = 2 if kind < 0.2 else 1
        return shared_pod(name, self._memory(draw), gpus, scheduler=SCHEDULER, labels=labels)

    @staticmethod
    def _memory(draw: random.Random) -> str:
        """1 to 38 GiB, most of them small."""
        return f"{int(1024 * 38 ** draw.random())}Mi"

    # --- at any time

    def _make_noise(self) -> None:
        """One pod that ends, goes or is edited while anything may be under way for it."""
        draw, api = self._noise_draw, self._stage.api
        pending, bound = self._stage.audit.pods()
        what = draw.choice(("delete pending", "delete bound", "finish", "edit pending"))
        pods = pending if what.endswith("pending") else [pod for pod in bound if pod.holds_memory]
        if what == "edit pending":
            pods = [pod for pod in pods if "gpu-memory" in pod.annotations]
        if not pods:
            return
        name = draw.choice(pods).name
        match what:
            case "finish":
                api.finish_pod(name)
            case "edit pending":
                # With the Binding under way, this edit must make the API server refuse it.
                api.patch_pod(name, {"metadata": {"annotations": {"vramcast.dev/gpu-memory": self._memory(draw)}}})
            case _:
                api.delete_pod(name)
