"""The demo's night: pods come and go, one runs out of memory, and the cluster learns from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from vramcast.cluster.static import StaticCluster
from vramcast.demo import kubelet
from vramcast.demo.day import Submit, full_annotations
from vramcast.demo.scheduler import DemoScheduler
from vramcast.demo.telemetry import DemoTelemetry

# Waiting pods are tried again this often, and given up after so many steps.
_TRY_EVERY = 2
_GIVE_UP = 14


@dataclass(slots=True)
class _Guest:
    """A pod of the night. `left`: steps until it ends, or until its owner gives up."""

    submit: Submit
    manifest: dict[str, Any]
    left: int
    lasts: int
    oom: bool
    placed: bool = False


class Night:
    """`say(pod, what)` is called when a pod is placed, waits or ends."""

    def __init__(
        self, cluster: StaticCluster, scheduler: DemoScheduler, telemetry: DemoTelemetry,
        say: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._cluster, self._scheduler, self._telemetry, self._say = cluster, scheduler, telemetry, say
        self._guests: list[_Guest] = []

    def play(self, number: int, pause: Callable[[], bool]) -> None:
        """`number` of the night. Ends early if `pause` says so, else when the last pod has ended."""
        comers = list(read_night(number))
        step = 0
        while comers or self._guests:
            if pause():
                return
            if comers and step % 2 == 0 and not self._is_there(comers[0]):
                self._arrive(comers.pop(0))
            self._advance(step)
            step += 1

    def _is_there(self, guest: _Guest) -> bool:
        """Its earlier run has not ended."""
        return any(other.submit.name == guest.submit.name for other in self._guests)

    def _arrive(self, guest: _Guest) -> None:
        self._cluster.delete_pod(guest.submit.namespace, guest.submit.name)
        self._cluster.create_pod(guest.manifest)
        self._guests.append(guest)
        self._try(guest, first=True)

    def _advance(self, step: int) -> None:
        for guest in list(self._guests):
            guest.left -= 1
            if guest.left <= 0:
                self._leave(guest)
            elif not guest.placed and step % _TRY_EVERY == 0:
                self._try(guest, first=False)

    def _try(self, guest: _Guest, *, first: bool) -> None:
        result = self._scheduler.schedule(guest.manifest)
        key = f"{guest.submit.namespace}/{guest.submit.name}"
        if result.node:
            guest.placed, guest.left = True, guest.lasts
            kubelet.start(self._cluster, guest.submit.namespace, guest.submit.name)
            if guest.oom:
                self._telemetry.too_large.add(key)
            self._say(key, f"→ {result.node}")
        elif first:
            self._say(key, "waits")

    def _leave(self, guest: _Guest) -> None:
        key = f"{guest.submit.namespace}/{guest.submit.name}"
        self._guests.remove(guest)
        self._telemetry.too_large.discard(key)
        if guest.placed:
            kubelet.end(self._cluster, guest.submit.namespace, guest.submit.name, oom=guest.oom)
            self._say(key, "ran out of GPU memory; its next run gets more" if guest.oom else "finishes")
        else:
            self._cluster.delete_pod(guest.submit.namespace, guest.submit.name)
            self._say(key, "is withdrawn by its owner")


def read_night(number: int) -> Iterator[_Guest]:
    entries = yaml.safe_load((files(__package__) / "night.yaml").read_text())
    for place, entry in enumerate(entries):
        namespace, _, name = entry["pod"].partition("/")
        submit = Submit("night", namespace, name, "", full_annotations(entry["annotations"]))
        # The same task again, by the same owner, is a new pod.
        manifest = submit.manifest(f"night-{number}-{place}")
        yield _Guest(submit, manifest, _GIVE_UP, entry["for"], entry.get("oom", False))
