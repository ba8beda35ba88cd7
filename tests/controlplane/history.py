"""The changes of pods and nodes in order, and a check that no GPU was ever overcommitted.

The check is independent: it imports nothing from vramcast and reads only what the API server recorded. Its main
rule is vramcast's promise: the reservations of the pods bound to a shared GPU never add up to more memory than
the GPU has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any

Json = dict[str, Any]

PREFIX = "vramcast.dev/"
MIB = 1024**2

_SUFFIXES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}
_QUANTITY = re.compile(r"(?P<number>[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)(?P<suffix>[KMGTPE]i|[mkMGTPE]?)")


def quantity(text: str) -> int:
    """A Kubernetes quantity in whole units, rounded up as Kubernetes rounds."""
    parts = _QUANTITY.fullmatch(text)
    if parts is None:
        raise ValueError(f"not a Kubernetes quantity: {text!r}")
    exact = Decimal(parts["number"]) * _SUFFIXES[parts["suffix"]]
    return int(exact.to_integral_value(rounding="ROUND_CEILING"))


class Change(Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class NodeState:
    """The GPUs of one version of a node."""

    name: str
    uid: str
    sharing: bool
    gpu_count: int
    gpu_bytes: int

    @classmethod
    def of(cls, node: Json) -> NodeState:
        labels = node["metadata"].get("labels", {})
        return cls(
            name=node["metadata"]["name"],
            uid=node["metadata"]["uid"],
            sharing=labels.get(f"{PREFIX}gpu-sharing") == "true",
            gpu_count=_number(labels.get("nvidia.com/gpu.count"), 0),
            gpu_bytes=_number(labels.get("nvidia.com/gpu.memory"), 0) * MIB,
        )


@dataclass(frozen=True, slots=True)
class PodState:
    """Where one version of a pod runs and what it holds."""

    namespace: str
    name: str
    uid: str
    node: str | None
    phase: str
    scheduler: str
    deleting: bool
    whole_gpus: int
    annotations: Mapping[str, str]  # vramcast's own, without the prefix
    unschedulable_message: str

    @classmethod
    def of(cls, pod: Json) -> PodState:
        meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
        annotations = meta.get("annotations", {})
        scheduled = [c for c in status.get("conditions", ()) if c["type"] == "PodScheduled"]
        return cls(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            node=spec.get("nodeName") or None,
            phase=status.get("phase", "Pending"),
            scheduler=spec.get("schedulerName", ""),
            deleting="deletionTimestamp" in meta,
            whole_gpus=sum(_whole_gpus(container) for container in spec["containers"]),
            annotations={k[len(PREFIX) :]: v for k, v in annotations.items() if k.startswith(PREFIX)},
            unschedulable_message=scheduled[0].get("message", "") if scheduled else "",
        )

    @property
    def shared(self) -> bool:
        return self.annotations.get("share") == "true" and self.whole_gpus == 0

    @property
    def holds_memory(self) -> bool:
        """Bound and not finished. A pod that is being deleted runs until its object is gone."""
        return self.node is not None and self.phase not in ("Succeeded", "Failed")

    @property
    def wanted_gpus(self) -> int:
        return _number(self.annotations.get("gpus"), 1)

    @property
    def asked_bytes(self) -> int | None:
        """The memory per GPU that the pod asked for; None without a valid amount."""
        try:
            return quantity(self.annotations["gpu-memory"])
        except (KeyError, ValueError):
            return None

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name}"


def _number(text: str | None, otherwise: int) -> int:
    """Some tests write invalid values on purpose. They count as missing."""
    return int(text) if text is not None and text.isdecimal() else otherwise


def _whole_gpus(container: Json) -> int:
    resources = container.get("resources", {})
    amounts = {**resources.get("requests", {}), **resources.get("limits", {})}
    return int(amounts.get("nvidia.com/gpu", 0))


@dataclass(frozen=True, slots=True)
class Event:
    """One change. Its revision is its position in etcd's total order of writes."""

    revision: int
    change: Change
    state: NodeState | PodState
    seen_at: float = 0.0  # monotonic seconds, when the recorder received it
    after_gap: bool = False  # from a new list: the changes between the previous event and this one are unknown


class Fault(Enum):
    OVERCOMMIT = "promises exceed the GPU's memory"
    SHRUNK = "the node shrank below the promises on it"
    MISSING_ANNOTATION = "bound without an assignment"
    BAD_ANNOTATION = "invalid assignment"
    UNDER_RESERVED = "reservation below the request"
    WRONG_NODE = "a shared pod on a node that does not share its GPUs"
    MIXED = "a whole-GPU pod on a node that shares its GPUs"


@dataclass(frozen=True, slots=True)
class Violation:
    fault: Fault
    revision: int
    where: str
    detail: str

    def __str__(self) -> str:
        return f"revision {self.revision}: {self.fault.value}: {self.where}: {self.detail}"


@dataclass(slots=True)
class Cluster:
    """The state after a prefix of the history. `apply` adds an event and returns the rules that it broke."""

    nodes: dict[str, NodeState] = field(default_factory=dict)
    pods: dict[str, PodState] = field(default_factory=dict)  # by UID

    def apply(self, event: Event) -> list[Violation]:
        if isinstance(event.state, NodeState):
            return self._apply_node(event.revision, event.change, event.state)
        return self._apply_pod(event.revision, event.change, event.state)

    def _apply_node(self, revision: int, change: Change, node: NodeState) -> list[Violation]:
        if change is Change.DELETED:
            self.nodes.pop(node.name, None)
            return []
        before = self.nodes.get(node.name)
        self.nodes[node.name] = node
        if before is not None and before == node:
            return []
        return self._overcommits(node, revision, Fault.SHRUNK)

    def _apply_pod(self, revision: int, change: Change, pod: PodState) -> list[Violation]:
        before = self.pods.pop(pod.uid, None)
        if change is Change.DELETED:
            return []
        self.pods[pod.uid] = pod
        if not pod.holds_memory or (before is not None and _same_claim(before, pod)):
            return []
        faults = [Violation(fault, revision, f"{pod} on {pod.node}", detail) for fault, detail in self._faults(pod)]
        node = self.nodes.get(pod.node or "")
        return faults if node is None else faults + self._overcommits(node, revision, Fault.OVERCOMMIT)

    def _faults(self, pod: PodState) -> Iterable[tuple[Fault, str]]:
        node = self.nodes.get(pod.node or "")
        if pod.whole_gpus and node is not None and node.sharing:
            yield Fault.MIXED, f"asks for {pod.whole_gpus} nvidia.com/gpu"
        if not pod.shared:
            return
        if node is not None and not node.sharing:
            yield Fault.WRONG_NODE, "the node lacks the sharing label"
        missing = [key for key in ("gpu-indices", "reserved-memory") if key not in pod.annotations]
        if missing:
            yield Fault.MISSING_ANNOTATION, ", ".join(missing)
            return
        yield from _assignment_faults(pod, node)

    def _overcommits(self, node: NodeState, revision: int, fault: Fault) -> list[Violation]:
        if not node.sharing:
            return []
        return [
            Violation(
                fault,
                revision,
                f"node {node.name} GPU {index}",
                f"{promised} bytes promised of {node.gpu_bytes if index < node.gpu_count else 0}, by "
                + ", ".join(sorted(str(pod) for pod in self.pods_on(node.name) if index in _indices(pod))),
            )
            for index, promised in sorted(self.promised_bytes(node.name).items())
            if promised > (node.gpu_bytes if index < node.gpu_count else 0)
        ]

    # --- questions about the state

    def pods_on(self, node: str) -> list[PodState]:
        return [pod for pod in self.pods.values() if pod.node == node and pod.holds_memory]

    def promised_bytes(self, node: str) -> dict[int, int]:
        """Per GPU index, the reservations of the pods bound to the node."""
        promised: dict[int, int] = {}
        for pod in self.pods_on(node):
            for index in _indices(pod):
                promised[index] = promised.get(index, 0) + _reserved(pod)
        return promised

    def room_bytes(self, node: str) -> list[int]:
        """Per GPU of a sharing node, the memory that is not reserved."""
        facts = self.nodes[node]
        promised = self.promised_bytes(node)
        return [facts.gpu_bytes - promised.get(index, 0) for index in range(facts.gpu_count)]

    def pending(self) -> list[PodState]:
        """Pods without a node."""
        return [pod for pod in self.pods.values() if pod.node is None and not pod.deleting]

    def pending_that_fit(
        self,
        need_bytes: Callable[[PodState], int | None] = lambda pod: pod.asked_bytes,
    ) -> dict[str, list[str]]:
        """Pending shared pods ("namespace/name") and the nodes that have room for them now.

        `need_bytes` is the need per GPU, by default the pod's request; pods with None are skipped. Tests with a
        driver reserve add it here.
        """
        waiting = [(pod, need_bytes(pod)) for pod in self.pending() if pod.shared]
        rooms = {name: self.room_bytes(name) for name, node in self.nodes.items() if node.sharing}
        fitting = {
            f"{pod.namespace}/{pod.name}": [
                name for name, room in rooms.items() if sum(free >= need for free in room) >= pod.wanted_gpus
            ]
            for pod, need in waiting
            if need is not None
        }
        return {pod: nodes for pod, nodes in fitting.items() if nodes}


def _same_claim(before: PodState, after: PodState) -> bool:
    """Most updates of a bound pod are status. Only a change of its claim can break a rule."""
    return (
        before.holds_memory
        and before.node == after.node
        and before.annotations == after.annotations
        and before.whole_gpus == after.whole_gpus
    )


def _assignment_faults(pod: PodState, node: NodeState | None) -> Iterable[tuple[Fault, str]]:
    text = pod.annotations["gpu-indices"]
    indices = _indices(pod)
    if len(indices) != pod.wanted_gpus or len(set(indices)) != len(indices):
        yield Fault.BAD_ANNOTATION, f"gpu-indices {text!r} for {pod.wanted_gpus} GPUs"
    if node is not None and any(index >= node.gpu_count for index in indices):
        yield Fault.BAD_ANNOTATION, f"gpu-indices {text!r} on a node of {node.gpu_count} GPUs"
    reserved = _reserved(pod)
    if reserved <= 0:
        yield Fault.BAD_ANNOTATION, f"reserved-memory {pod.annotations['reserved-memory']!r}"
    elif pod.asked_bytes is not None and reserved < pod.asked_bytes:
        yield Fault.UNDER_RESERVED, f"{reserved} bytes reserved, {pod.asked_bytes} requested"


def _indices(pod: PodState) -> Sequence[int]:
    """The GPUs that a pod holds. An invalid value holds none; `_assignment_faults` reports it."""
    parts = pod.annotations.get("gpu-indices", "").split(",")
    return [int(part) for part in parts] if all(part.isdecimal() for part in parts) else []


def _reserved(pod: PodState) -> int:
    try:
        return quantity(pod.annotations.get("reserved-memory", "0"))
    except ValueError:
        return 0


@dataclass(frozen=True, slots=True)
class History:
    """All recorded events, in etcd's order."""

    events: Sequence[Event]

    @classmethod
    def of(cls, events: Iterable[Event]) -> History:
        # Nodes and pods arrive on separate watches. Their revisions share one order.
        return cls(sorted(events, key=lambda event: event.revision))

    def violations(self) -> list[Violation]:
        """Every broken rule, at the event that broke it."""
        cluster = Cluster()
        return [violation for event in self.events for violation in cluster.apply(event)]

    def final(self) -> Cluster:
        """The state after the last event."""
        cluster = Cluster()
        for event in self.events:
            cluster.apply(event)
        return cluster

    def bindings(self) -> list[Event]:
        """For every pod that was ever bound, the event that bound it."""
        bound: dict[str, Event] = {}
        for event in self.events:
            if isinstance(event.state, PodState) and event.state.node is not None:
                bound.setdefault(event.state.uid, event)
        return list(bound.values())

    def assert_sound(self, ignoring: Iterable[Fault] = ()) -> None:
        ignored = set(ignoring)
        broken = [violation for violation in self.violations() if violation.fault not in ignored]
        shown = "\n".join(str(violation) for violation in broken[:20])
        assert not broken, f"{len(broken)} violations in {len(self.events)} events:\n{shown}"
