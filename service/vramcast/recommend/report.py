"""Everything that `vramcast recommend` says, before it is printed in any format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from vramcast.hardware.mig import mig_layout
from vramcast.names import Product
from vramcast.recommend.advice import Recommendation, RecommendedAction, advise, peaks_of, usable_mib_of
from vramcast.recommend.margins import Margins
from vramcast.recommend.packing import Occupancy, PackedPod, as_it_was, packed
from vramcast.recommend.runs import History, PodRun, by_workload

# A workload that was not seen for this long is gone, if it is one that would still be there.
GONE_SECONDS: Final = 7 * 86_400.0
_DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Report:
    """`gpus`: in use as it was, if pods shared GPUs, and if they had MIG slices. Whole GPUs only."""

    risk: float
    history: History
    recommendations: tuple[Recommendation, ...]  # the most spare GPU-hours first
    as_it_was: Occupancy
    shared: Occupancy
    sliced: Occupancy
    notes: tuple[str, ...]

    @property
    def plans(self) -> tuple[tuple[str, Occupancy], ...]:
        return ("as it was", self.as_it_was), ("with shares", self.shared), ("with MIG slices", self.sliced)


def make_report(history: History, risk: float, notes: Sequence[str] = ()) -> Report:
    groups = list(by_workload(history.runs))
    margins = Margins([peaks_of(pods) for *_, pods in groups], risk)
    found: list[Recommendation] = []
    whole: list[tuple[Recommendation, PodRun]] = []
    for workload, product, profile, pods in groups:
        usable_mib = usable_mib_of(product, profile, history.sizes_mib)
        one = advise(workload, pods, margins.need(peaks_of(pods)), usable_mib, history.step_seconds)
        found.append(one)
        if not profile and one.verdict is not RecommendedAction.UNCLEAR:
            whole += [(one, pod) for pod in pods]
    found.sort(key=lambda one: (-one.spare_gpu_hours, -one.gpu_hours, one.workload, one.product))
    today = [_tenancy(one, pod, 1.0, 1.0, len(pod.peaks_mib)) for one, pod in whole]
    return Report(
        risk, history, tuple(found), as_it_was(today),
        packed([_shared(one, pod) for one, pod in whole]), packed([_sliced(one, pod) for one, pod in whole]),
        (*notes, *_notes(history, found)),
    )  # fmt: skip


def _tenancy(one: Recommendation, pod: PodRun, memory: float, compute: float, gpus: int) -> PackedPod:
    end = max(pod.last_at, pod.first_at + 1.0)
    return PackedPod(one.product, pod.first_at, end, gpus, memory, compute, tuple(pod.peaks_mib))


def _gpus(one: Recommendation, pod: PodRun) -> int:
    return min(one.used, len(pod.peaks_mib))


def _shared(one: Recommendation, pod: PodRun) -> PackedPod:
    if one.share is None:
        return _tenancy(one, pod, 1.0, 1.0, _gpus(one, pod))
    return _tenancy(one, pod, one.need.mib / one.usable_mib, one.busy or 0.0, _gpus(one, pod))


def _sliced(one: Recommendation, pod: PodRun) -> PackedPod:
    layout = mig_layout(Product(one.product))
    if one.mig is None or layout is None:
        return _tenancy(one, pod, 1.0, 1.0, _gpus(one, pod))
    memory, compute = one.mig.memory_slices / layout.memory_slices, one.mig.compute_slices / layout.compute_slices
    return _tenancy(one, pod, memory, compute, _gpus(one, pod))


def is_gone(one: Recommendation, history: History) -> bool:
    return one.last_at < history.end - GONE_SECONDS


def _notes(history: History, found: Sequence[Recommendation]) -> Iterator[str]:
    """What limits these figures, and what to do about it."""
    seen_days = ((history.last_at or history.end) - (history.first_at or history.start)) / _DAY
    asked_days = (history.end - history.start) / _DAY
    if history.empty_windows:
        yield (
            f"the history is incomplete: {history.empty_windows} of {history.windows} windows have no GPU samples; "
            f"pods were seen on {seen_days:.1f} of {asked_days:.1f} days. Prometheus keeps 15 days unless "
            "--storage.tsdb.retention.time says more"
        )
    if history.nameless > history.gpus / 2:
        yield (
            f"{history.nameless / history.gpus:.0%} of the GPUs' time has no pod: they were idle, or dcgm-exporter "
            "does not name pods there. It does with DCGM_EXPORTER_KUBERNETES=true, and on time-sliced GPUs with "
            "KUBERNETES_VIRTUAL_GPUS=true"
        )
    pods = len(history.runs)
    if history.unknown_pods:
        what = "all" if history.unknown_pods == pods else f"{history.unknown_pods} of {pods}"
        yield (
            f"kube-state-metrics does not know {what} pods: their workloads are guessed from their names, and what "
            "they asked for from the GPUs they had. Install it, or point --prometheus at the server that scrapes it"
        )
    for fault, count in sorted(history.faults.items()):
        yield f"{count} samples were skipped ({fault})"
    unclear = sum(one.verdict is RecommendedAction.UNCLEAR for one in found)
    if unclear:
        yield f"{unclear} workloads are unclear, each with a note; they are not in the numbers of GPUs"
    gone = sum(is_gone(one, history) for one in found)
    if gone:
        yield (
            f"{gone} workloads were last seen more than 7 days ago; --patch leaves them out. "
            "--since 7d leaves them out of the report too"
        )
