"""Windows of history, joined into runs: one pod from its first sample to its last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from vramcast.recommend.pod_names import guess_owner, without_run
from vramcast.recommend.window import PodFacts, PodOwner, Stretch, Window, merged

# Without a UID, a pod of the same name that comes back after this long is another run. Exporters restart faster.
_NEW_RUN_SECONDS: Final = 3600.0
# These have one pod after the other, or many at once: every pod is a run of its own.
_PODS_ARE_RUNS: Final = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Pod"})
# These keep their name from run to run.
_NAMED_FOR_GOOD: Final = (_PODS_ARE_RUNS - {"Pod"}) | {"CronJob"}


@dataclass(frozen=True, slots=True, order=True)
class Workload:
    """`guessed`: from the name of its pods, because kube-state-metrics does not know them."""

    namespace: str
    kind: str
    name: str
    guessed: bool = False

    @property
    def label(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class PodRun:
    """`batch`: pods with the same batch are one run, such as the workers of one Job."""

    workload: Workload
    batch: str
    product: str
    profile: str
    first_at: float
    last_at: float
    peaks_mib: dict[tuple[str, str], int] = field(default_factory=dict)  # by node and GPU
    steps: int = 0
    shared_steps: int = 0
    busy_sum: float = 0.0
    busy_weight: float = 0.0
    failed: bool = False
    devices: dict[str, int] = field(default_factory=dict)
    containers: tuple[str, ...] = ()

    def gpus(self, step_seconds: float) -> int:
        """As requested, or else as many as it had at a time: a name that was used again may have had others later."""
        at_a_time = round(self.steps * step_seconds / max(self.last_at - self.first_at, step_seconds))
        return sum(self.devices.values()) or min(len(self.peaks_mib), max(at_a_time, 1))

    @property
    def peak_mib(self) -> int:
        return max(self.peaks_mib.values(), default=0)


@dataclass(slots=True)
class History:
    """What is known after all windows: its size grows with the number of pods, not of samples."""

    start: float
    end: float
    step_seconds: float
    runs: list[PodRun] = field(default_factory=list)
    empty_windows: int = 0
    windows: int = 0
    first_at: float | None = None  # of the first sample
    last_at: float | None = None
    gpus: int = 0  # summed over windows
    nameless: int = 0  # likewise: those without a pod in that window
    unknown_pods: int = 0  # pods that kube-state-metrics does not know
    faults: dict[str, int] = field(default_factory=dict)
    sizes_mib: dict[str, int] = field(default_factory=dict)
    most_series: int = 0


class RunBook:
    """Takes windows in the order of time."""

    def __init__(self, start: float, end: float, step_seconds: float) -> None:
        self.history = History(start, end, step_seconds)
        self._runs: dict[tuple[str, str, str, str, str], PodRun] = {}
        self._facts: dict[tuple[str, str, str], PodFacts] = {}

    def add(self, window: Window) -> None:
        history = self.history
        history.windows += 1
        history.empty_windows += not window.gpus
        history.gpus += window.gpus
        history.nameless += window.nameless
        history.most_series = max(history.most_series, window.most_series)
        for fault, count in window.faults.items():
            history.faults[fault] = history.faults.get(fault, 0) + count
        history.sizes_mib |= window.sizes_mib
        for known in window.facts:
            key = (known.namespace, known.pod, known.uid)
            self._facts[key] = merged(self._facts.get(key), known)
        for stretch in sorted(window.stretches, key=lambda stretch: stretch.first_at):
            self._join(stretch, self._facts.get((stretch.namespace, stretch.pod, stretch.uid)))

    def _join(self, stretch: Stretch, facts: PodFacts | None) -> None:
        key = (stretch.namespace, stretch.pod, stretch.uid, stretch.product, stretch.profile)
        run = self._runs.get(key)
        if run is None or (not stretch.uid and stretch.first_at > run.last_at + _NEW_RUN_SECONDS):
            run = self._runs[key] = _new_run(stretch, facts)
            self.history.runs.append(run)
            self.history.unknown_pods += facts is None
        _extend(run, stretch)
        if facts is not None:
            run.workload = _workload(stretch.namespace, facts.root or PodOwner("Pod", stretch.pod), guessed=False)
            run.failed = facts.failed
            run.devices, run.containers = facts.devices or run.devices, facts.containers or run.containers
            # A step that a pod did not fill counts only as far as it did.
            run.first_at = max(run.first_at, min(facts.created_at, run.last_at))
            if facts.completed_at > run.first_at:
                run.last_at = min(run.last_at, facts.completed_at)
        history = self.history
        history.first_at = min(history.first_at or stretch.first_at, stretch.first_at)
        history.last_at = max(history.last_at or 0.0, stretch.last_at)


def _new_run(stretch: Stretch, facts: PodFacts | None) -> PodRun:
    owner, root = (facts.owner, facts.root) if facts is not None else (None, None)
    if facts is None:
        workload = _workload(stretch.namespace, guess_owner(stretch.pod), guessed=True)
    else:
        workload = _workload(stretch.namespace, root or PodOwner("Pod", stretch.pod), guessed=False)
    lone = owner is None or workload.kind in _PODS_ARE_RUNS
    batch = f"{stretch.pod}/{stretch.uid}/{stretch.first_at:.0f}" if lone or owner is None else owner.name
    return PodRun(workload, batch, stretch.product, stretch.profile, stretch.first_at, stretch.last_at)


def _workload(namespace: str, root: PodOwner, *, guessed: bool) -> Workload:
    """Jobs and bare pods that differ only in a generated suffix are runs of one workload."""
    name = root.name if root.kind in _NAMED_FOR_GOOD else without_run(root.name)
    return Workload(namespace, root.kind, name, guessed)


def _extend(run: PodRun, stretch: Stretch) -> None:
    run.first_at, run.last_at = min(run.first_at, stretch.first_at), max(run.last_at, stretch.last_at)
    for device, mib in stretch.peaks_mib.items():
        place = (stretch.node, device)
        run.peaks_mib[place] = max(mib, run.peaks_mib.get(place, 0))
    run.steps += stretch.steps
    run.shared_steps += stretch.shared_steps
    run.busy_sum += stretch.busy_sum
    run.busy_weight += stretch.busy_weight


def by_workload(runs: list[PodRun]) -> Iterator[tuple[Workload, str, str, list[PodRun]]]:
    """Workload, product, MIG profile and its pods, in the order of time. A guess that names a known workload is one."""
    known = {replace(run.workload, guessed=True): run.workload for run in runs if not run.workload.guessed}
    groups: dict[tuple[Workload, str, str], list[PodRun]] = {}
    for run in sorted(runs, key=lambda run: run.first_at):
        workload = known.get(run.workload, run.workload)
        groups.setdefault((workload, run.product, run.profile), []).append(run)
    for (workload, product, profile), pods in groups.items():
        yield workload, product, profile, pods
