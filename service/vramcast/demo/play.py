"""Plays the demo's day: submits pods, schedules them, and shows each decision."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from vramcast.cluster.seam import PodEvent
from vramcast.cluster.static import StaticCluster
from vramcast.demo import kubelet, screen
from vramcast.demo.day import CLUSTER_FILE, EXAMPLE_POD_FILE, Finish, Step, Submit, read_day
from vramcast.demo.night import Night
from vramcast.demo.scheduler import DemoScheduler
from vramcast.demo.telemetry import DemoTelemetry
from vramcast.errors import WorldUnavailable
from vramcast.outcomes.readings import PodValues
from vramcast.settings import LogLevel

_STEP_SECONDS = 0.7
# A day takes seconds, so everything that is measured has to be quick.
DEMO_SETTINGS: dict[str, Any] = {
    "log_level": LogLevel.ERROR,  # OOMs are part of the show
    "telemetry_interval_seconds": 1.0,
    "telemetry_lag_seconds": 0.0,
    "telemetry_stale_seconds": 30.0,
    "telemetry_pod_values": PodValues.POD,
    "min_run_seconds": 2.0,
    "hold_ttl_seconds": 10.0,
    "hold_wait_seconds": 0.1,
}


class Serve(Protocol):
    """Serves the cluster until SIGTERM. Calls `ready(url)` from another thread when it accepts requests."""

    def __call__(self, cluster: StaticCluster, ready: Callable[[str], None], telemetry: DemoTelemetry) -> None: ...


def stop_this_process() -> None:
    """Sends SIGTERM, so that the service finishes requests in progress."""
    os.kill(os.getpid(), signal.SIGTERM)


def run_demo(
    serve: Serve,
    *,
    speed: float = 1.0,
    once: bool = False,
    console: Console | None = None,
    stop: Callable[[], None] = stop_this_process,
) -> int:
    """Returns the exit code. `speed` 2 is twice as fast, 0 never pauses. `once` exits at the end of the day."""
    cluster = StaticCluster.from_file(CLUSTER_FILE)
    telemetry = DemoTelemetry(cluster)
    player = Player(cluster, console or screen.new_console(), _STEP_SECONDS / speed if speed > 0 else 0.0)

    def ready(url: str) -> None:
        try:
            player.play(url, read_day())
            if not once and not cluster.stopped.is_set():
                screen.show_commands(player.console, commands(url), url)
                player.go_on(url, read_day(), telemetry)
        except WorldUnavailable as error:
            player.fail(error)
        finally:
            if once or player.failed:
                stop()

    serve(cluster, ready, telemetry)
    return 1 if player.failed else 0


class Player:
    """Submits and finishes pods as the script says, and schedules those that wait."""

    def __init__(self, cluster: StaticCluster, console: Console, pause_seconds: float) -> None:
        self.console = console
        self.failed = False
        self._cluster = cluster
        self._pause_seconds = pause_seconds
        self._stop_grace_seconds = 4 * pause_seconds
        self._waiting: dict[str, tuple[Submit, dict[str, Any]]] = {}
        self._placed: list[str] = []
        self._round = 1

    def play(self, url: str, day: Sequence[Step]) -> None:
        """Raises WorldUnavailable if the service stops before the end."""
        scheduler = DemoScheduler(url)
        screen.show_opening(self.console, url, scheduler.gpus())
        for step in day:
            if self._pause():
                return
            self._play(step, scheduler)
        gpus = scheduler.gpus()
        screen.show_map(self.console, "after the day", gpus)
        screen.show_summary(self.console, self._placed, list(self._waiting), gpus)

    def go_on(self, url: str, day: Sequence[Step], telemetry: DemoTelemetry) -> None:
        """Nights and days, until the service stops."""
        scheduler = DemoScheduler(url)
        night = Night(self._cluster, scheduler, telemetry, partial(screen.show_night, self.console))
        while not self._cluster.stopped.is_set():
            self._close_day()
            night.play(self._round, self._pause)
            self._clear()
            self._round += 1
            for step in day:
                if self._pause():
                    return
                self._play(step, scheduler)

    def _pause(self) -> bool:
        """True if the service has stopped."""
        return self._cluster.stopped.wait(self._pause_seconds)

    def _close_day(self) -> None:
        """What still runs of the day ends, one pod after the other."""
        for key in self._placed:
            namespace, _, name = key.partition("/")
            if kubelet.end(self._cluster, namespace, name):
                screen.show_night(self.console, key, "finishes")
                if self._pause():
                    return

    def _clear(self) -> None:
        """The pods of the day are deleted, so that the next day can create them again."""
        for key in (*self._placed, *self._waiting):
            namespace, _, name = key.partition("/")
            self._cluster.delete_pod(namespace, name)
        self._placed, self._waiting = [], {}

    def fail(self, error: WorldUnavailable) -> None:
        """Not a failure if the user stopped the service: its port closes a moment before `stopped` is set."""
        if not self._cluster.stopped.wait(self._stop_grace_seconds):
            self.failed = True
            self.console.print(f"[red]the service does not answer:[/red] {error}")

    def _play(self, step: Step, scheduler: DemoScheduler) -> None:
        if isinstance(step, Submit):
            self._submit(step, scheduler)
        else:
            self._finish(step, scheduler)

    def _submit(self, step: Submit, scheduler: DemoScheduler) -> None:
        manifest = step.manifest(f"day-{self._round}")
        self._cluster.create_pod(manifest)
        self._try(step, manifest, scheduler)

    def _finish(self, step: Finish, scheduler: DemoScheduler) -> None:
        kubelet.end(self._cluster, step.namespace, step.name)
        screen.show_finish(self.console, step)
        for waiting, manifest in list(self._waiting.values()):
            if self._pause():
                return
            self._try(replace(waiting, at=step.at, note="was waiting, and is tried again"), manifest, scheduler)

    def _try(self, step: Submit, manifest: dict[str, Any], scheduler: DemoScheduler) -> None:
        before = len(self._cluster.events)
        result = scheduler.schedule(manifest)
        key = f"{step.namespace}/{step.name}"
        if result.node:
            self._waiting.pop(key, None)
            self._placed.append(key)
            kubelet.start(self._cluster, step.namespace, step.name)
        else:
            still = key in self._waiting
            self._waiting[key] = (step, manifest)
            if still:
                screen.show_still_waiting(self.console, step)
                return
        events: Sequence[PodEvent] = self._cluster.events[before:]
        screen.show_result(self.console, step, result, scheduler.gpus(), events)


def commands(url: str) -> list[tuple[str, str]]:
    """Requests to try, with the example pod."""
    pod = os.path.relpath(EXAMPLE_POD_FILE)
    file = pod if not pod.startswith("..") else str(Path(EXAMPLE_POD_FILE))
    pretty = "python3 -m json.tool"
    return [
        (f"curl -s {url}/explain --data-binary @{file} | {pretty}", "where would this pod go, and why not elsewhere?"),
        (f"curl -s {url}/forecast --data-binary @{file} | {pretty}", "what does it need on each GPU, part by part?"),
        (f"curl -s '{url}/state?node=l40s-share' | {pretty}", "what is promised to whom?"),
    ]
