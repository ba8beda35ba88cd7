"""Plays the demo's day: submits pods, schedules them, and shows each decision."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from vramcast.cluster.seam import PodEvent
from vramcast.cluster.static import StaticCluster
from vramcast.demo import screen
from vramcast.demo.day import CLUSTER_FILE, EXAMPLE_POD_FILE, Finish, Step, Submit, read_day
from vramcast.demo.scheduler import DemoScheduler
from vramcast.errors import WorldUnavailable

_STEP_SECONDS = 0.5


class Serve(Protocol):
    """Serves the cluster until SIGTERM. Calls `ready(url)` from another thread when it accepts requests."""

    def __call__(self, cluster: StaticCluster, ready: Callable[[str], None]) -> None: ...


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
    player = Player(cluster, console or screen.new_console(), _STEP_SECONDS / speed if speed > 0 else 0.0)

    def ready(url: str) -> None:
        try:
            player.play(url, read_day())
            if not once and not cluster.stopped.is_set():
                screen.show_commands(player.console, commands(url), url)
        except WorldUnavailable as error:
            player.fail(error)
        finally:
            if once or player.failed:
                stop()

    serve(cluster, ready)
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

    def play(self, url: str, day: Sequence[Step]) -> None:
        """Raises WorldUnavailable if the service stops before the end."""
        scheduler = DemoScheduler(url)
        screen.show_opening(self.console, url, scheduler.gpus())
        for step in day:
            if self._cluster.stopped.wait(self._pause_seconds):
                return
            if isinstance(step, Submit):
                self._submit(step, scheduler)
            else:
                self._finish(step, scheduler)
        gpus = scheduler.gpus()
        screen.show_map(self.console, "after the day", gpus)
        screen.show_summary(self.console, self._placed, list(self._waiting), gpus)

    def fail(self, error: WorldUnavailable) -> None:
        """Not a failure if the user stopped the service: its port closes a moment before `stopped` is set."""
        if not self._cluster.stopped.wait(self._stop_grace_seconds):
            self.failed = True
            self.console.print(f"[red]the service does not answer:[/red] {error}")

    def _submit(self, step: Submit, scheduler: DemoScheduler) -> None:
        manifest = step.manifest()
        self._cluster.create_pod(manifest)
        self._try(step, manifest, scheduler)

    def _finish(self, step: Finish, scheduler: DemoScheduler) -> None:
        self._cluster.finish_pod(step.namespace, step.name)
        screen.show_finish(self.console, step)
        for waiting, manifest in list(self._waiting.values()):
            if self._cluster.stopped.wait(self._pause_seconds):
                return
            self._try(replace(waiting, at=step.at, note="was waiting, and is tried again"), manifest, scheduler)

    def _try(self, step: Submit, manifest: dict[str, Any], scheduler: DemoScheduler) -> None:
        before = len(self._cluster.events)
        result = scheduler.schedule(manifest)
        key = f"{step.namespace}/{step.name}"
        if result.node:
            self._waiting.pop(key, None)
            self._placed.append(key)
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
