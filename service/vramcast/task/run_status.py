"""What a pod shows about its run: when it began and ended, and whether it ran out of GPU memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec

from vramcast.hardware.utilization import UNKNOWN_UTILIZATION, Utilization
from vramcast.hardware.vendors import OOM_PHRASES
from vramcast.task.exit_report import ExitReport, read_report
from vramcast.task.forms import MAX_GPU_MEMORY_MIB
from vramcast.task.quantity import ceil_mib, parse_quantity
from vramcast.task.task import OBSERVED_MEMORY, OUT_OF_MEMORY
from vramcast.task.vocabulary import Written
from vramcast.task.written_utilization import read_utilization

_LONGEST_STEP_SECONDS = 1e6


class Ending(StrEnum):
    """How a run ended; a metric label, so the set is closed."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # for another reason than GPU memory
    OOM = "oom"  # out of GPU memory: the observed peak is less than it needed
    STOPPED = "stopped"  # deleted while running


@dataclass(frozen=True, slots=True)
class RunFacts:
    """From a bound pod's status and annotations. Times are seconds since the epoch."""

    started_at: float | None = None
    ended_at: float | None = None
    ending: Ending | None = None  # None: still running, or unknown
    exit_code: int | None = None
    median_mib: int | None = None  # forecast
    model_version: str = ""
    utilization: Utilization = UNKNOWN_UTILIZATION  # forecast
    step_seconds: float | None = None  # forecast
    adjustment: str = ""  # of the forecast by calibration
    observed_mib: int | None = None  # by the job's own annotation
    report: ExitReport | None = None


class Terminated(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    exit_code: int | None = None
    message: str | None = None
    finished_at: str | None = None


class ContainerState(msgspec.Struct, frozen=True, gc=False):
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class Condition(msgspec.Struct, frozen=True, gc=False):
    type: str | None = None
    status: str | None = None
    message: str | None = None


class PodStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str | None = None
    nominated_node_name: str | None = None
    conditions: list[Condition | None] | None = None
    message: str | None = None
    start_time: str | None = None
    container_statuses: list[ContainerStatus | None] | None = None


def read_run(status: PodStatus | None, annotations: Mapping[str, str]) -> RunFacts:
    """Never raises: unreadable values count as absent."""
    status = status or PodStatus()
    ends = list(_terminations(status, last=False))
    ended_at = max((at for end in ends if (at := _epoch(end.finished_at)) is not None), default=None)
    failed = next((end.exit_code for end in ends if end.exit_code), None)
    return RunFacts(
        started_at=_epoch(status.start_time),
        ended_at=ended_at,
        ending=_ending(status, annotations),
        exit_code=failed,
        median_mib=_mib(annotations.get(Written.FORECAST_MEMORY)),
        model_version=annotations.get(Written.MODEL_VERSION, ""),
        utilization=read_utilization(annotations),
        step_seconds=_seconds(annotations.get(Written.FORECAST_STEP_SECONDS)),
        adjustment=annotations.get(Written.CALIBRATION, ""),
        observed_mib=_mib(annotations.get(OBSERVED_MEMORY)),
        report=read_report(end.message for end in ends),
    )


def _ending(status: PodStatus, annotations: Mapping[str, str]) -> Ending | None:
    if annotations.get(OUT_OF_MEMORY) == "true" or _out_of_memory(status):
        # Even if the container was restarted and succeeded: the promise was too small.
        return Ending.OOM
    return {"Succeeded": Ending.SUCCEEDED, "Failed": Ending.FAILED}.get(status.phase or "")


def _out_of_memory(status: PodStatus) -> bool:
    said = [status.message, *(end.message for last in (False, True) for end in _terminations(status, last=last))]
    if any(phrase in text.lower() for text in said if text for phrase in OOM_PHRASES):
        return True
    reports = (read_report(end.message for end in _terminations(status, last=last)) for last in (False, True))
    return any(report.out_of_memory for report in reports if report is not None)


def _terminations(status: PodStatus, *, last: bool) -> Iterator[Terminated]:
    for container in status.container_statuses or ():
        state = (container.last_state if last else container.state) if container else None
        if state and state.terminated:
            yield state.terminated


def _epoch(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def _mib(text: str | None) -> int | None:
    try:
        mib = ceil_mib(parse_quantity(text)) if text else None
    except ValueError:
        return None
    return mib if mib is not None and 0 <= mib <= MAX_GPU_MEMORY_MIB else None


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text) if text else None
    except ValueError:
        return None
    return seconds if seconds is not None and 0 < seconds < _LONGEST_STEP_SECONDS else None
