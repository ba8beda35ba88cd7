"""Replicas of the service, each next to its own kube-scheduler. The kube-schedulers elect the leader."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

from tests.controlplane import Scheduler, eventually
from tests.e2e.conftest import RunningService

SCHEDULER = "replicated-scheduler"
# The bootstrap role of the kube-scheduler allows a Lease of this name, in any namespace.
LEASE_NAMESPACE, LEASE_NAME = "default", "kube-scheduler"
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{LEASE_NAME}"
# A takeover takes seconds. Shorter ones are lost on a busy machine.
ELECTION = {
    "leaderElect": True, "resourceLock": "leases", "resourceNamespace": LEASE_NAMESPACE, "resourceName": LEASE_NAME,
    "leaseDuration": "8s", "renewDeadline": "6s", "retryPeriod": "1s",
}  # fmt: skip
# vramcast reads the Lease, as in the chart.
LEASE_ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "vramcast-lease"},
    "rules": [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [LEASE_NAME], "verbs": ["get"]}
    ],
}


@dataclass(slots=True)
class Replica:
    service: RunningService
    scheduler: Scheduler
    runs: bool = True
    _lock: Lock = field(default_factory=Lock)

    @property
    def leading(self) -> bool:
        return self.service.process.alive and self.service.metric("vramcast_leading") == 1

    def kill(self) -> None:
        """As if its machine was lost."""
        with self._lock:
            self.runs = False
            self.scheduler.kill()
        self.service.kill()

    def revive_scheduler(self) -> None:
        with self._lock:
            if self.runs and not self.scheduler.alive:
                self.scheduler.start()


def await_leader(replicas: list[Replica]) -> Replica:
    leaders: list[Replica] = eventually(lambda: [r for r in replicas if r.leading], what="one of the replicas to lead")
    return leaders[0]
