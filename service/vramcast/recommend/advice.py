"""What one workload should ask for: the same, fewer GPUs, a MIG slice, or a share of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from vramcast.hardware.mig import MigProfile, mig_layout
from vramcast.hardware.products import memory_mib, reserve_mib
from vramcast.names import Product
from vramcast.outcomes.attribution import LEAST_USED_MIB
from vramcast.recommend.margins import Need, Peak
from vramcast.recommend.runs import PodRun, Workload

# A pod that takes more of a GPU than this leaves nothing worth sharing.
MOST_SHARED: Final = 0.9
# A run that failed with so much of its GPU in use probably ran out of memory.
_FULL: Final = 0.97
# Frameworks that take a fixed part of the GPU at their start show that part, not their need.
_POOLS: Final = (
    (
        0.735,
        0.765,
        "always 75 % of its GPU, as JAX takes at its start: measure with XLA_PYTHON_CLIENT_PREALLOCATE=false",
    ),
    (0.88, 0.93, "always 90 % of its GPU, as vLLM takes at its start: a lower --gpu-memory-utilization shows its need"),
)


class RecommendedAction(StrEnum):
    SHARE = "share"
    SLICE = "slice"  # of MIG; it does not share well, or has a larger slice now
    FEWER = "fewer GPUs"
    KEEP = "keep"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One workload on one GPU product. Shares are of one GPU, from 0 to 1; `usable_mib` is 0 where it is unknown."""

    workload: Workload
    product: str
    profile: str  # of the MIG slice that it has; empty for whole GPUs
    devices: dict[str, int]
    containers: tuple[str, ...]
    asked: int  # GPUs of one pod
    used: int  # those of them that it used
    runs: int
    pods: int
    failed: int
    peak_mib: int
    usual_mib: int  # the median run
    need: Need
    usable_mib: int
    busy: float | None
    gpu_hours: float
    first_at: float
    last_at: float
    verdict: RecommendedAction
    share: float | None  # of a GPU's memory, or of its time if that is more; None: it cannot share
    mig: MigProfile | None  # the smallest that holds it
    notes: tuple[str, ...]

    @property
    def spare_gpu_hours(self) -> float:
        """Of the GPUs that it had, what it would not need."""
        if self.verdict is RecommendedAction.FEWER:
            return self.gpu_hours * (1.0 - self.used / self.asked)
        if self.profile or self.verdict in (RecommendedAction.KEEP, RecommendedAction.UNCLEAR):
            return 0.0
        layout = mig_layout(Product(self.product))
        if self.share is not None:
            return self.gpu_hours * (1.0 - self.share)
        return self.gpu_hours * (1.0 - self.mig.compute_slices / layout.compute_slices) if self.mig and layout else 0.0


def peaks_of(pods: Sequence[PodRun]) -> list[Peak]:
    """One peak per run, oldest first: pods of one batch are one run, which failed if its last pod did."""
    batches: dict[str, Peak] = {}
    for pod in pods:
        before = batches.get(pod.batch)
        batches[pod.batch] = Peak(max(pod.peak_mib, before.mib if before else 0), pod.failed)
    return list(batches.values())


def advise(workload: Workload, pods: Sequence[PodRun], need: Need, usable_mib: int, step_seconds: float
           ) -> Recommendation:  # fmt: skip
    """`pods`: of one product and MIG profile, oldest first."""
    product, profile, peaks = pods[0].product, pods[0].profile, peaks_of(pods)
    asked = max(pod.gpus(step_seconds) for pod in pods)
    used = max(1, *(sum(mib >= LEAST_USED_MIB for mib in pod.peaks_mib.values()) for pod in pods))
    used = min(used, asked)
    weight = sum(pod.busy_weight for pod in pods)
    busy = min(sum(pod.busy_sum for pod in pods) / weight, 1.0) if weight else None
    clear = any(not pod.shared_steps for pod in pods)
    notes = list(_notes(workload, peaks, usable_mib, clear=clear, busy=busy))
    verdict, share, mig = RecommendedAction.UNCLEAR, None, None
    if clear and usable_mib:
        mig = _slice(product, profile, need.mib, busy) if used == 1 else None
        share = _share(need.mib, usable_mib, busy) if used == 1 and not profile else None
        verdict = _verdict(asked, used, share, mig, profile)
    return Recommendation(
        workload, product, profile, pods[-1].devices, pods[-1].containers, asked, used, len(peaks), len(pods),
        sum(peak.floor for peak in peaks), max(peak.mib for peak in peaks), _median(peaks), need, usable_mib, busy,
        sum(pod.steps for pod in pods) * step_seconds / 3600.0, min(pod.first_at for pod in pods),
        max(pod.last_at for pod in pods), verdict, share, mig, tuple(notes),
    )  # fmt: skip


def usable_mib_of(product: str, profile: str, sizes_mib: dict[str, int]) -> int:
    """What pods can use of one GPU or MIG slice; 0 where nobody knows. `sizes_mib`: as the exporter showed them."""
    layout = mig_layout(Product(product))
    if profile:
        known = layout.profile(profile) if layout else None
        return known.usable_mib if known else 0
    total_mib = memory_mib(Product(product)) or sizes_mib.get(product, 0)
    return max(total_mib - reserve_mib(Product(product)), 0)


def _verdict(asked: int, used: int, share: float | None, mig: MigProfile | None, profile: str) -> RecommendedAction:
    if used < asked:
        return RecommendedAction.FEWER
    if share is not None:
        return RecommendedAction.SHARE
    return (
        RecommendedAction.SLICE if mig is not None and mig.name != profile.partition("+")[0] else RecommendedAction.KEEP
    )


def _share(need_mib: int, usable_mib: int, busy: float | None) -> float | None:
    share = max(need_mib / usable_mib, busy or 0.0)
    return share if share <= MOST_SHARED else None


def _slice(product: str, profile: str, need_mib: int, busy: float | None) -> MigProfile | None:
    """The smallest with room for its memory and, if it keeps the GPU busy, for its work."""
    layout = mig_layout(Product(product))
    if layout is None:
        return None
    own = layout.profile(profile)
    part = own.compute_slices if own else layout.compute_slices
    work = (busy or 0.0) * part
    return next((p for p in layout.profiles if p.usable_mib >= need_mib and p.compute_slices + 1e-9 >= work), None)


def _median(peaks: Sequence[Peak]) -> int:
    ordered = sorted(peak.mib for peak in peaks)
    return ordered[(len(ordered) - 1) // 2]


def _notes(workload: Workload, peaks: Sequence[Peak], usable_mib: int, *, clear: bool, busy: float | None) -> list[str]:
    notes = []
    if not clear:
        notes.append("shares a GPU with other pods: DCGM shows the memory of all of them, not its own")
    if not usable_mib:
        notes.append("the size of this GPU is unknown: the exporter does not show DCGM_FI_DEV_FB_FREE")
    if any(peak.floor and usable_mib and peak.mib >= _FULL * usable_mib for peak in peaks):
        notes.append("failed with its GPU full: it probably ran out of memory and needs more than it had")
    if busy is None:
        notes.append("no utilization: only its memory was considered")
    shares = [peak.mib / usable_mib for peak in peaks] if usable_mib else []
    notes += [note for low, high, note in _POOLS if shares and all(low <= share <= high for share in shares)]
    if workload.guessed:
        notes.append("workload guessed from the pods' names")
    return notes
