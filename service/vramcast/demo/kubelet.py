"""What a kubelet reports about the demo's pods. Their jobs write exit reports."""

from __future__ import annotations

from datetime import UTC, datetime

from vramcast.cluster.static import StaticCluster
from vramcast.demo.telemetry import exit_report
from vramcast.task.run_status import ContainerState, ContainerStatus, PodStatus, Terminated


def start(cluster: StaticCluster, namespace: str, name: str) -> None:
    cluster.set_status(namespace, name, PodStatus(phase="Running", start_time=_now()))


def end(cluster: StaticCluster, namespace: str, name: str, *, oom: bool = False) -> bool:
    """False if it has ended already."""
    record = cluster.read_pod(namespace, name)
    if record is None or record.finished:
        return False
    started = record.run.started_at if record.run else None
    message = "torch.OutOfMemoryError: CUDA out of memory." if oom else exit_report(record)
    terminated = Terminated(exit_code=1 if oom else 0, message=message, finished_at=_now())
    return cluster.set_status(
        namespace,
        name,
        PodStatus(
            phase="Failed" if oom else "Succeeded",
            start_time=datetime.fromtimestamp(started, UTC).isoformat() if started is not None else None,
            container_statuses=[ContainerStatus(state=ContainerState(terminated=terminated))],
        ),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat()
