"""A control plane, and two replicas of the chart's default mode whose vramcast reaches it through proxies."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import urllib3
import yaml
from tests.chart.helm import CHART, Helm
from tests.chart.replica import Replica
from tests.controlplane import Api, ApiError, ControlPlane, NodeState, Process, eventually
from tests.controlplane.objects import A100_40GB, sharing_node

from .audit import Audit
from .clock import SteppedClock, build_shim
from .etcd import EtcdWatch
from .proxy import TroubledProxy

NAMESPACE = "vramcast-system"
SCHEDULER = "vramcast-scheduler"
EDITOR = "system:serviceaccount:default:editor"
_EDITOR_ROLE = {
    "kind": "ClusterRole",
    "metadata": {"name": "editor"},
    "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"]}],
}
UNAVAILABLE = (ApiError, urllib3.exceptions.HTTPError, OSError)
_KUBELET_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int = 40
    gpus_a_node: int = 4


@dataclass(slots=True)
class Kubelet:
    """Restarts containers that end, at once: the schedulers when they lose the Lease, whatever the faults kill."""

    processes: list[Process]
    own_ends: list[str] = field(default_factory=list)  # of vramcast, which never ends by itself
    restarts: int = 0
    _held: set[str] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def hands_off(self, *processes: Process) -> Iterator[None]:
        """What ends here ends on purpose."""
        with self._lock:
            self._held |= {process.name for process in processes}
        try:
            yield
        finally:
            with self._lock:
                self._held -= {process.name for process in processes}

    def _run(self) -> None:
        while not self._stopping.wait(_KUBELET_SECONDS):
            with self._lock:
                for process in self.processes:
                    if not process.alive and process.name not in self._held:
                        self.restarts += 1
                        if process.name.endswith("/vramcast"):
                            self.own_ends.append(process.log_tail(20))
                        process.start()


class Stage:
    """A context manager. `lease`: other times of leader election than the chart's."""

    def __init__(self, size: Size, seed: int, longest_wait_seconds: float, lease: dict[str, str] | None = None) -> None:
        self._size, self._seed, self._lease_times = size, seed, lease
        self._longest_wait_seconds = longest_wait_seconds
        self._exits = ExitStack()

    def __enter__(self) -> Stage:
        with ExitStack() as exits:
            # Events would fill etcd within the hour that they are kept by default.
            self.plane = exits.enter_context(ControlPlane(apiserver_flags=["--event-ttl=3m"]))
            self.api: Api = self.plane.api
            self._create_nodes()
            self._install()
            directory = self.plane.directory
            certificates = directory / "certificates"
            files = (certificates / "apiserver.crt", certificates / "apiserver.key")
            shim = build_shim(directory)
            self.proxies = [
                exits.enter_context(TroubledProxy(self.plane.url, *files, self._seed + number)) for number in range(2)
            ]
            self.clocks = [SteppedClock(shim, directory / f"clock-{number}") for number in range(2)]
            self.replicas = [
                self._replica(f"vramcast-{number}", proxy, clock)
                for number, (proxy, clock) in enumerate(zip(self.proxies, self.clocks, strict=True))
            ]
            self.lease_path = _lease_path(directory / "vramcast-0" / "vramcast.yaml")
            roles = self.plane.kubeconfig_for("editor", [_EDITOR_ROLE])
            self.editor = exits.enter_context(Api.from_kubeconfig(roles))
            self._start_audit(exits)
            for replica in self.replicas:
                exits.callback(replica.kill)
                replica.start()
            self.kubelet = Kubelet([process for replica in self.replicas for process in replica.processes])
            self.kubelet.start()
            exits.callback(self.kubelet.stop)
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.__exit__(kind, error, trace)

    # --- setting up

    def _create_nodes(self) -> None:
        names = [f"gpu-{number:03}" for number in range(self._size.nodes)]
        self.api.create_nodes(sharing_node(name, A100_40GB, self._size.gpus_a_node) for name in names)

        def all_ready() -> bool:
            conditions = [node["status"].get("conditions", ()) for node in self.api.nodes()]
            return all(any(c["type"] == "Ready" and c["status"] == "True" for c in one) for one in conditions)

        eventually(all_ready, what="all nodes are ready", interval_seconds=0.2)
        # Nobody needs the pods to run, and their kubelets would take the CPU of what is tested.
        self.plane.kwok.terminate()

    def _install(self) -> None:
        self.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        values: dict[str, Any] = {"admissionPolicy": {"exemptUsers": [EDITOR]}}
        if self._lease_times:
            values["scheduler"] = {"leaderElection": self._lease_times}
        helm = Helm(self.plane.binaries.helm, self.plane.kubeconfig)
        helm.run("install", "vramcast", str(CHART), f"--namespace={NAMESPACE}", values=values)

    def _replica(self, name: str, proxy: TroubledProxy, clock: SteppedClock) -> Replica:
        directory = self.plane.directory / name
        return Replica(self.plane, NAMESPACE, "vramcast", name, directory, proxy.url, clock.environment)

    def _start_audit(self, exits: ExitStack) -> None:
        nodes = [NodeState.of(node) for node in self.api.nodes()]
        self.audit = Audit(nodes, self._longest_wait_seconds)
        self.watch = EtcdWatch(self.plane.etcd_url, self.audit.write)
        self.watch.start()
        exits.callback(self.watch.stop)

    # --- the leader

    def holder(self) -> str:
        """Of the Lease; empty if nobody holds it or the API server does not answer."""
        try:
            lease = self.api.get(self.lease_path)
        except UNAVAILABLE:
            return ""
        return str(lease["spec"].get("holderIdentity") or "")

    def leader(self) -> Replica:
        leading = eventually(self._leader, what="a replica to hold the Lease")
        assert leading is not None
        return leading

    def _leader(self) -> Replica | None:
        name = self.holder().rpartition("_")[0]
        return next((replica for replica in self.replicas if replica.name == name), None)

    def await_other_holder(self, holder: str) -> None:
        eventually(lambda: self.holder() not in ("", holder), what=f"another holder of the Lease than {holder}")

    # --- the API server

    def restart_apiserver(self) -> float:
        """Returns the time at which it was ready again."""
        for proxy in self.proxies:
            proxy.stop_listening()
        self.plane.apiserver.kill()
        self.plane.apiserver.start()
        eventually(lambda: self.accepts_connections(self.plane.url), what="the API server to listen")
        for proxy in self.proxies:
            proxy.listen()
        eventually(self.api.ready, what="the API server to be ready")
        return time.monotonic()

    @staticmethod
    def accepts_connections(url: str) -> bool:
        address = urlsplit(url)
        try:
            with socket.create_connection((address.hostname or "", address.port or 0), timeout=1.0):
                return True
        except OSError:
            return False

    def versions(self) -> dict[str, str]:
        etcd = urllib3.request("GET", f"{self.plane.etcd_url}/version").json()
        return {"kubernetes": self.api.get("/version")["gitVersion"].removeprefix("v"), "etcd": etcd["etcdserver"]}

    def defects(self) -> list[str]:
        """Lines in which vramcast itself reports a defect."""
        lines = []
        for replica in self.replicas:
            with replica.service.log.open(errors="replace") as log:
                lines += [line.strip() for line in log if '"defect' in line or "Traceback" in line]
        return lines


def _lease_path(settings: Path) -> str:
    namespace, _, name = yaml.safe_load(settings.read_text())["leader_lease"].partition("/")
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
