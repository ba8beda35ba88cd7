"""An API server in memory: pods with versions, preconditions, a Lease, and requests whose answers get lost.

It stands behind vramcast's own client code (`KubernetesCluster`), so retries and reads after a lost answer are real.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.fakes import FakeClock, shared_pod
from vramcast.cluster.transport import JSON, Action, ApiResponse, ApiUnreachable, Transport
from vramcast.names import PodUid
from vramcast.task.pod import Pod
from vramcast.task.quantity import ceil_mib, parse_quantity
from vramcast.task.vocabulary import Written

Json = dict[str, Any]
# The API server drops a request after a minute. `unconfirmed_ttl_seconds` relies on that.
REQUEST_SECONDS = 60.0
LEASE_SECONDS = 15


@dataclass(slots=True, repr=False, eq=False)
class Stored:
    """A pod as etcd has it. `given_mib`: what its Binding wrote, whatever its annotations say by now."""

    manifest: Json
    given_mib: int = 0
    # Every version so far, encoded. A scheduler may still work with an older one.
    versions: list[bytes] = field(default_factory=list)

    def __repr__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def uid(self) -> PodUid:
        return PodUid(self.manifest["metadata"]["uid"])

    @property
    def version(self) -> str:
        return str(self.manifest["metadata"]["resourceVersion"])

    @property
    def annotations(self) -> dict[str, str]:
        annotations: dict[str, str] = self.manifest["metadata"]["annotations"]
        return annotations

    @property
    def status(self) -> Json:
        status: Json = self.manifest["status"]
        return status

    @property
    def node(self) -> str | None:
        return self.manifest["spec"].get("nodeName")

    @property
    def finished(self) -> bool:
        return self.status.get("phase") == "Succeeded"

    @property
    def need_mib(self) -> int:
        return self.need_mib_in(-1)

    def need_mib_in(self, version: int) -> int:
        manifest = msgspec.json.decode(self.versions[version])
        return ceil_mib(parse_quantity(manifest["metadata"]["annotations"]["vramcast.dev/gpu-memory"]))

    @property
    def gang(self) -> str:
        return str(self.manifest["spec"].get("schedulingGroup", {}).get("podGroupName", ""))


@dataclass(frozen=True, slots=True)
class Event:
    """Of a watch on unfinished pods: a pod that finishes is reported as deleted."""

    deleted: bool
    pod: bytes


@dataclass(slots=True, repr=False, eq=False)
class LateWrite:
    """A Binding that was sent and got no answer. It may arrive until `dies_at`, if nobody takes over meanwhile."""

    name: str
    body: Json
    dies_at: float

    def __repr__(self) -> str:
        return f"Binding of {self.name}"


@dataclass(slots=True)
class Lease:
    holder: str = ""
    transitions: int = 0
    renewals: int = 0
    renewed_at: float = 0.0


class ApiServer(Transport):
    """`fault` is what happens to the next requests; `meanwhile` is called before every request but a call's first."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.pods: dict[str, Stored] = {}
        self.log: list[Event] = []
        self.late_writes: list[LateWrite] = []
        self.lease = Lease()
        self.fault = "none"
        self.meanwhile: Callable[[], None] = lambda: None
        self._requests = 0
        self._revision = 0

    # ------------------------------------------------------------------ what other clients do

    def create(self, name: str, memory: str, gang: str) -> None:
        pod = Stored(shared_pod(name, memory))
        pod.manifest["status"] = {}
        pod.manifest["metadata"]["generation"] = 1
        if gang:
            pod.manifest["spec"]["schedulingGroup"] = {"podGroupName": gang}
        self.pods[name] = pod
        self.store(pod)

    def store(self, pod: Stored) -> None:
        """The pod has changed. It gets a new version, and the watches will show it."""
        self._revision += 1
        pod.manifest["metadata"]["resourceVersion"] = str(self._revision)
        pod.versions.append(msgspec.json.encode(pod.manifest))
        self.log.append(Event(pod.finished, pod.versions[-1]))

    def delete(self, pod: Stored) -> None:
        del self.pods[pod.name]
        if not pod.finished:
            self.log.append(Event(True, pod.versions[-1]))

    def unfinished(self) -> list[Stored]:
        return [pod for pod in self.pods.values() if not pod.finished]

    def list_unfinished(self) -> list[Pod]:
        return [msgspec.json.decode(pod.versions[-1], type=Pod) for pod in self.unfinished()]

    def renew_lease(self, holder: str) -> None:
        lease = self.lease
        if lease.holder != holder:
            lease.holder, lease.transitions = holder, lease.transitions + 1
        lease.renewals += 1
        lease.renewed_at = self.clock.now

    # ------------------------------------------------------------------ late writes

    def land(self, write: LateWrite) -> None:
        self.late_writes.remove(write)
        self._bind(write.name, write.body)

    def drop_dead_writes(self) -> None:
        self.late_writes = [write for write in self.late_writes if write.dies_at > self.clock.now]

    def outlive(self) -> None:
        """Somebody takes over. From now on no time limit protects against the writes under way, only their version."""
        for write in self.late_writes:
            write.dies_at = float("inf")

    # ------------------------------------------------------------------ requests

    def begin_call(self, fault: str) -> None:
        self.fault, self._requests = fault, 0

    def request(
        self,
        action: Action,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: object = None,
        content_type: str = JSON,
        timeout_seconds: float = 30.0,
    ) -> ApiResponse:
        self._requests += 1
        if self._requests > 1:
            self.meanwhile()
        if self.fault == "unreachable":
            self._time_out(timeout_seconds)
        name = path.split("/pods/")[1].split("/", maxsplit=1)[0] if "/pods/" in path else ""
        sent: Any = msgspec.json.decode(msgspec.json.encode(body))
        match action.verb, action.resource:
            case "create", "pods/binding":
                status, content = self._faulty_bind(name, sent, timeout_seconds)
            case "patch", "pods/status":
                status, content = self._faulty_patch(name, sent, timeout_seconds)
            case "get", "pods":
                self._fail_read(timeout_seconds)
                pod = self.pods.get(name)
                status, content = (200, pod.versions[-1]) if pod else (404, b"{}")
            case "list", "pods":
                items = b",".join(pod.versions[-1] for pod in self.unfinished())
                status, content = 200, b'{"metadata":{},"items":[' + items + b"]}"
            case "get", "leases":
                status, content = 200, self._lease()
            case _:
                raise AssertionError(f"unexpected request: {method} {path}")
        return ApiResponse(action, status, content)

    def _faulty_bind(self, name: str, body: Json, timeout_seconds: float) -> tuple[int, bytes]:
        match self.fault:
            case "refused":
                return 429, b"{}"
            case "failed once":  # etcd has it, and its answer got lost on the way to the API server
                self.fault = "none"
                self._bind(name, body)
                return 500, b"{}"
            case "answer lost" | "answer lost, pod read":
                self._bind(name, body)
                self._time_out(timeout_seconds)
            case "late" | "late, pod read":
                self.late_writes.append(LateWrite(name, body, self.clock.now + REQUEST_SECONDS))
                self._time_out(timeout_seconds)
        return self._bind(name, body)

    def _bind(self, name: str, body: Json) -> tuple[int, bytes]:
        """With the preconditions that the real one checks in its transaction."""
        pod, metadata = self.pods.get(name), body["metadata"]
        if pod is None:
            return 404, b"{}"
        if metadata["uid"] != pod.uid or metadata.get("resourceVersion", pod.version) != pod.version:
            return 409, b"{}"
        if pod.node is not None:
            return 409, b"{}"
        pod.manifest["spec"]["nodeName"] = body["target"]["name"]
        pod.annotations.update(metadata["annotations"])
        pod.status.pop("nominatedNodeName", None)
        pod.given_mib = ceil_mib(parse_quantity(metadata["annotations"][Written.RESERVED_MEMORY]))
        self.store(pod)
        return 201, b"{}"

    def _faulty_patch(self, name: str, body: Json, timeout_seconds: float) -> tuple[int, bytes]:
        answer = self._patch(name, body)
        if self.fault == "answer lost":
            self._time_out(timeout_seconds)
        return answer

    def _patch(self, name: str, body: Json) -> tuple[int, bytes]:
        pod = self.pods.get(name)
        if pod is None:
            return 404, b"{}"
        if body["metadata"]["uid"] != pod.uid:
            return 409, b"{}"
        pod.annotations.update(body["metadata"]["annotations"])
        self.store(pod)
        return 200, pod.versions[-1]

    def _fail_read(self, timeout_seconds: float) -> None:
        if self.fault in ("answer lost", "late"):
            self._time_out(timeout_seconds)

    def _time_out(self, timeout_seconds: float) -> None:
        self.clock.now += timeout_seconds
        raise ApiUnreachable("no answer", maybe_applied=True)

    def _lease(self) -> bytes:
        lease = self.lease
        spec = {
            "holderIdentity": lease.holder, "leaseTransitions": lease.transitions,
            "leaseDurationSeconds": LEASE_SECONDS, "renewTime": str(lease.renewals),
        }  # fmt: skip
        return msgspec.json.encode({"spec": spec})
