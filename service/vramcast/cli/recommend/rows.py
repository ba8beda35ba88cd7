"""The report as rows of text and as plain data: what every format prints."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from vramcast.cli.recommend.patches import annotations_of
from vramcast.recommend.advice import Recommendation, RecommendedAction
from vramcast.recommend.packing import Occupancy
from vramcast.recommend.report import Report, is_gone
from vramcast.task.quantity import human_mib

COLUMNS: Final = (
    "workload", "kind", "GPU", "asked", "runs", "peak", "need", "busy", "GPU-hours", "spare", "do",
)  # fmt: skip
NUMBERS: Final = frozenset({"asked", "runs", "peak", "need", "busy", "GPU-hours", "spare"})


def row(one: Recommendation) -> tuple[str, ...]:
    return (
        one.workload.label, one.workload.kind + ("?" if one.workload.guessed else ""), gpu(one), str(one.asked),
        str(one.runs), human_mib(one.peak_mib), human_mib(one.need.mib), percent(one.busy),
        f"{one.gpu_hours:,.1f}", f"{one.spare_gpu_hours:,.1f}", action(one),
    )  # fmt: skip


def gpu(one: Recommendation) -> str:
    short = one.product.removeprefix("NVIDIA-") or "unknown"
    return f"{short} {one.profile}" if one.profile else short


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def action(one: Recommendation) -> str:
    match one.verdict:
        case RecommendedAction.FEWER:
            return f"ask for {one.used} of {one.asked} GPUs"
        case RecommendedAction.SHARE:
            return f"share, {percent(one.share)} of a GPU" + (f", or MIG {one.mig.name}" if one.mig else "")
        case RecommendedAction.SLICE:
            return f"MIG {one.mig.name}" if one.mig else ""
        case RecommendedAction.KEEP:
            return "keep"
        case RecommendedAction.UNCLEAR:
            return "see notes"


def totals(report: Report) -> list[tuple[str, str, str, str, str]]:
    """Plan, GPUs at its busiest moment, freed, GPU-hours, freed."""
    was = report.as_it_was
    return [
        (name, str(plan.most), str(was.most - plan.most), f"{plan.gpu_hours:,.1f}",
         f"{was.gpu_hours - plan.gpu_hours:,.1f}")
        for name, plan in report.plans
    ]  # fmt: skip


def summary(report: Report) -> str:
    history = report.history
    days = (history.end - history.start) / 86_400
    return (
        f"{len(report.recommendations)} workloads with {len(history.runs)} pods, {moment(history.start)} to "
        f"{moment(history.end)} ({days:.1f} days); needs at risk {report.risk:g}"
    )


def moment(at: float | None) -> str:
    return "-" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def as_data(report: Report) -> dict[str, Any]:
    history = report.history
    return {
        "from": history.start, "to": history.end, "step_seconds": history.step_seconds, "risk": report.risk,
        "pods": len(history.runs),
        "plans": {name: _plan(plan, report.as_it_was) for name, plan in report.plans},
        "workloads": [workload_data(one, report) for one in report.recommendations],
        "notes": list(report.notes),
    }  # fmt: skip


def _plan(plan: Occupancy, was: Occupancy) -> dict[str, Any]:
    return {
        "gpus_at_busiest": plan.most, "busiest_at": plan.busiest_at, "gpus_freed": was.most - plan.most,
        "gpu_hours": round(plan.gpu_hours, 3), "gpu_hours_freed": round(was.gpu_hours - plan.gpu_hours, 3),
    }  # fmt: skip


def workload_data(one: Recommendation, report: Report) -> dict[str, Any]:
    return {
        "namespace": one.workload.namespace, "kind": one.workload.kind, "name": one.workload.name,
        "guessed": one.workload.guessed, "gpu": one.product, "mig_profile": one.profile, "asked_gpus": one.asked,
        "used_gpus": one.used, "requests": one.devices, "runs": one.runs, "pods": one.pods, "failed_runs": one.failed,
        "peak_mib": one.peak_mib, "median_peak_mib": one.usual_mib, "need_mib": one.need.mib,
        "margin": round(one.need.margin, 4), "margin_from": str(one.need.basis), "usable_mib": one.usable_mib,
        "busy": _rounded(one.busy), "gpu_hours": round(one.gpu_hours, 3),
        "spare_gpu_hours": round(one.spare_gpu_hours, 3), "verdict": str(one.verdict), "share": _rounded(one.share),
        "fits_mig": one.mig.name if one.mig else None, "first_seen": one.first_at, "last_seen": one.last_at,
        "gone": is_gone(one, report.history), "annotations": annotations_of(one), "notes": list(one.notes),
    }  # fmt: skip


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)
