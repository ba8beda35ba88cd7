"""One control plane for all tests of the chart. Releases on it clean up after themselves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chart.crds import foreign_crds
from tests.chart.helm import CHART, Helm
from tests.chart.replica import Replica
from tests.controlplane import Api, ApiError, ControlPlane, eventually, kubelet

NAMESPACE = "vramcast-system"
# A takeover takes seconds. Shorter ones are lost on a busy machine, and a kube-scheduler that loses its lease exits.
QUICK_LEASE = {"leaseDuration": "8s", "renewDeadline": "6s", "retryPeriod": "1s"}
QUICK: dict[str, Any] = {"scheduler": {"leaderElection": QUICK_LEASE, "podMaxBackoffSeconds": 2}}

NewReplica = Callable[..., Replica]


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    # No kube-proxy runs here, so the API server itself looks up the endpoints of a webhook's Service.
    with ControlPlane(apiserver_flags=["--enable-aggregator-routing=true"]) as running:
        # Pod Security admission rejects pods that do not meet the restricted standard.
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
        running.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
        running.kubectl("apply", "--server-side", *(f"--filename={path}" for path in foreign_crds()))
        eventually(lambda: _served(running.api), what="the foreign kinds to be served")
        yield running


def _served(api: Api) -> bool:
    kinds = {
        "monitoring.coreos.com": ("podmonitors", "servicemonitors", "prometheusrules"),
        "cert-manager.io": ("certificates", "issuers"),
    }
    try:
        return all(api.get(f"/apis/{group}/v1/{kind}") for group, names in kinds.items() for kind in names)
    except ApiError:
        return False


@pytest.fixture(scope="session")
def helm(plane: ControlPlane) -> Helm:
    return Helm(plane.binaries.helm, plane.kubeconfig)


@pytest.fixture
def release(plane: ControlPlane, helm: Helm) -> Iterator[str]:
    """The default mode, installed, and nothing learned yet."""
    helm.run("install", "vramcast", str(CHART), f"--namespace={NAMESPACE}", values=QUICK)
    yield "vramcast"
    uninstall(plane, helm)


def uninstall(plane: ControlPlane, helm: Helm) -> None:
    helm.run("uninstall", "vramcast", f"--namespace={NAMESPACE}")
    plane.api.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/configmaps/vramcast-learned")
    _delete_leases(plane.api)


def _delete_leases(api: Api) -> None:
    """Otherwise the next test's replica waits until the lease of this test's has expired."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    for lease in api.get(path)["items"]:
        api.request("DELETE", f"{path}/{lease['metadata']['name']}")


@pytest.fixture
def new_replica(
    plane: ControlPlane, release: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[NewReplica]:
    """Starts pods of the release. They end with the test."""
    made: list[Replica] = []
    request.node.replicas = made

    def make(name: str, api_url: str | None = None) -> Replica:
        replica = Replica(plane, NAMESPACE, release, name, tmp_path / name, api_url)
        made.append(replica)
        return replica

    with kubelet(lambda: [replica.revive_scheduler() for replica in list(made)]):
        yield make
    for replica in made:
        replica.kill()


@pytest.fixture
def api(plane: ControlPlane) -> Iterator[Api]:
    plane.api.clear()
    yield plane.api
    plane.api.clear()


def await_leader(*replicas: Replica) -> Replica:
    leaders: list[Replica] = eventually(lambda: [r for r in replicas if r.leading], what="one of the replicas to lead")
    return leaders[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for replica in getattr(item, "replicas", ()):
            report.sections.append((replica.name, replica.log_tails()))
    return report
