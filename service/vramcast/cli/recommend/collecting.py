"""The whole history, window by window, with progress: what is stored is not asked again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from vramcast.cli.recommend.asking import PatientApi, PrometheusAway, QuestionTooLarge
from vramcast.cli.recommend.reading import Scope, WindowReader
from vramcast.cli.recommend.store import WindowStore
from vramcast.errors import InvalidInput, WorldUnavailable
from vramcast.hardware.vendors import NVIDIA
from vramcast.recommend.runs import History, RunBook

WINDOW_SECONDS: Final = 6 * 3600.0
# Samples arrive late where a Prometheus forwards them to another. A window that ended just now is not stored.
_SETTLED_SECONDS: Final = 900.0
# Clocks that differ by more are worth a note; Prometheus's own clock decides.
_SKEW_SECONDS: Final = 60.0


class WindowProgress(Protocol):
    def windows(self, done: int, total: int, *, stored: int) -> None: ...


@dataclass(frozen=True, slots=True)
class HistorySpan:
    """Seconds since the epoch, on the grid of windows except for `end`."""

    start: float
    end: float

    def windows(self, step_seconds: float) -> Iterator[tuple[float, float]]:
        """The last one is shorter, and ends with a whole step."""
        at = self.start
        while at + step_seconds <= self.end:
            ends = min(at + WINDOW_SECONDS, at + step_seconds * ((self.end - at) // step_seconds))
            yield at, ends
            at = ends


def span(now: float, since_seconds: float) -> HistorySpan:
    """Starts with the window in which the time asked for begins."""
    return HistorySpan((now - since_seconds) // WINDOW_SECONDS * WINDOW_SECONDS, now)


def server_clock(api: PatientApi, local: Callable[[], float]) -> tuple[float, list[str]]:
    """Prometheus's own time, and a note if the local clock differs."""
    try:
        samples = [sample for series in api.query("vector(time())", waits=()) for sample in series.samples]
    except (PrometheusAway, QuestionTooLarge) as error:
        raise WorldUnavailable(
            f"{error}; is --prometheus the address of a Prometheus? In a cluster, try: "
            "kubectl --namespace monitoring port-forward service/prometheus-operated 9090"
        ) from None
    now = samples[-1][1] if samples else local()
    ahead = local() - now
    if abs(ahead) <= _SKEW_SECONDS:
        return now, []
    what = "ahead of" if ahead > 0 else "behind"
    return now, [f"the local clock is {abs(ahead):.0f} s {what} Prometheus's, whose time counts; check NTP on both"]


def collect(api: PatientApi, scope: Scope, asked: HistorySpan, store: WindowStore, progress: WindowProgress) -> History:
    """Raises WorldUnavailable, which says how to go on; finished windows stay stored."""
    reader = WindowReader(api, scope)
    book = RunBook(asked.start, asked.end, scope.step_seconds)
    windows = list(asked.windows(scope.step_seconds))
    stored = 0
    for done, (start, end) in enumerate(windows):
        progress.windows(done, len(windows), stored=stored)
        window = store.load(start, end)
        stored += window is not None
        if window is None:
            try:
                window = reader.read(start, end)
            except (PrometheusAway, QuestionTooLarge) as error:
                raise WorldUnavailable(f"{error}; {_remedy(error, done, len(windows))}") from None
            if end <= asked.end - _SETTLED_SECONDS:
                store.save(window)
        book.add(window)
    progress.windows(len(windows), len(windows), stored=stored)
    store.forget_before(asked.start)
    if not book.history.runs:
        raise InvalidInput(_nothing(book.history, scope))
    return book.history


def _remedy(error: WorldUnavailable, done: int, total: int) -> str:
    kept = f"{done} of {total} windows are kept: the same command goes on from there"
    if isinstance(error, QuestionTooLarge):
        return (
            f"even ten minutes of history are too much for it; {kept}. Ask for less with --namespace, wait longer with "
            "--timeout, or raise --query.max-samples and --query.timeout of Prometheus"
        )
    return f"{kept} once Prometheus answers"


def _nothing(history: History, scope: Scope) -> str:
    where = f" for namespace {', '.join(scope.namespaces)}" if scope.namespaces else ""
    if not history.gpus:
        return (
            f"no GPU samples{where}: Prometheus has no {NVIDIA.exporter.memory} in this time. Is dcgm-exporter scraped "
            "(its target is under Status > Targets)? Is another Prometheus the one with the history? Is --since longer "
            "than its retention?"
        )
    return (
        f"no series of a GPU names a pod{where}: set DCGM_EXPORTER_KUBERNETES=true in dcgm-exporter (the GPU operator "
        "does), mount /var/lib/kubelet/pod-resources into it, and run this again when it has run for a while"
    )
