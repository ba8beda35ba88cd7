"""The judge of bench/chaos must notice what it looks for."""

from __future__ import annotations

from bench.chaos.audit import Audit
from bench.chaos.etcd import Write, read_pod

from tests.controlplane import NodeState, PodState
from tests.controlplane.history import MIB, Fault
from tests.fakes import FakeClock

GPU_GIB = 40


class History:
    """One node with one GPU of 40 GiB, and an audit that allows a pod to wait for 60 s."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        node = NodeState("gpu", "gpu", sharing=True, gpu_count=1, gpu_bytes=GPU_GIB * 1024 * MIB)
        self.audit = Audit([node], 60.0, self.clock)
        self.revision = 0

    def write(self, name: str, asked_gib: int, node: str | None = None, phase: str = "Pending", **written: str) -> None:
        annotations = {"share": "true", "gpu-memory": f"{asked_gib}Gi"}
        if node:
            annotations |= {"reserved-memory": f"{asked_gib}Gi", "gpu-indices": "0"}
        annotations |= {key.replace("_", "-"): value for key, value in written.items()}
        self._add(name, PodState("default", name, name, node, phase, "", False, 0, annotations, ""))

    def delete(self, name: str) -> None:
        self._add(name, None)

    def _add(self, name: str, pod: PodState | None) -> None:
        self.revision += 1
        self.audit.write(Write(self.revision, f"/registry/pods/default/{name}", pod))

    def faults(self) -> list[Fault]:
        return [violation.fault for violation in self.audit.violations]


def test_two_bindings_that_exceed_a_gpu_are_found() -> None:
    history = History()
    history.write("one", 30, "gpu")
    history.write("two", 20, "gpu")
    assert history.faults() == [Fault.OVERCOMMIT]
    assert "node gpu GPU 0" in str(history.audit.violations[0])


def test_memory_of_ended_and_deleted_pods_is_free() -> None:
    history = History()
    history.write("one", 30, "gpu")
    history.write("one", 30, "gpu", phase="Succeeded")
    history.write("two", 30, "gpu")
    history.delete("two")
    history.write("three", 30, "gpu")
    assert history.faults() == []
    assert history.audit.binds == 3


def test_an_edit_of_a_bound_pod_frees_nothing() -> None:
    history = History()
    history.write("one", 30, "gpu")
    history.write("one", 30, "gpu", reserved_memory="1Mi")
    assert history.faults() == []
    history.write("two", 20, "gpu")
    assert history.faults() == [Fault.OVERCOMMIT]


def test_a_pod_is_stuck_only_if_it_had_room_all_the_time() -> None:
    history = History()
    history.write("tenant", 30, "gpu")
    history.write("waits", 20)
    for _ in range(100):
        history.clock.now += 1
        history.audit.check_waiting()
    assert not history.audit.stuck
    history.delete("tenant")
    for _ in range(60):
        history.clock.now += 1
        history.audit.check_waiting()
    assert not history.audit.stuck
    history.clock.now += 2
    history.audit.check_waiting()
    assert set(history.audit.stuck) == {"default/waits"}


def test_the_need_of_a_forecast_task_is_learned_from_its_first_binding() -> None:
    history = History()
    task = {"gpu_memory": "", "model": "timm/resnet50"}
    history.write("first", 30, "gpu", **task)
    history.write("second", 1, **task)
    assert not history.audit.waiting_with_room()
    history.delete("first")
    assert set(history.audit.waiting_with_room()) == {"default/second"}


def test_the_first_bind_after_a_fault_is_found() -> None:
    history = History()
    for name, at in (("one", 10.0), ("two", 20.0)):
        history.clock.now = at
        history.write(name, 1, "gpu")
    assert history.audit.first_bind_after(5.0) == 10.0
    assert history.audit.first_bind_after(10.0) == 20.0
    assert history.audit.first_bind_after(20.0) is None


def test_a_stored_pod_is_read_from_protobuf() -> None:
    entry = message((1, b"vramcast.dev/gpu-indices"), (2, b"3"))
    foreign = message((1, b"note"), (2, b"-"))
    metadata = message((1, b"task"), (3, b"default"), (5, b"uid-1"), (12, entry), (12, foreign))
    spec = message((3, b"Always"), (10, b"gpu-007"), (19, b"vramcast-scheduler"))
    pod = message((1, metadata), (2, b"\x20\x00" + spec), (3, message((1, b"Running"))))
    read = read_pod(b"k8s\0" + message((1, b"\x0a\x02v1"), (2, pod)))
    assert (read.name, read.namespace, read.uid) == ("task", "default", "uid-1")
    assert (read.node, read.phase, read.scheduler) == ("gpu-007", "Running", "vramcast-scheduler")
    assert read.annotations == {"gpu-indices": "3"}
    assert not read.deleting


def message(*fields: tuple[int, bytes]) -> bytes:
    """Length-delimited fields."""
    return b"".join(varint(number << 3 | 2) + varint(len(value)) + value for number, value in fields)


def varint(number: int) -> bytes:
    head, rest = number & 0x7F, number >> 7
    return bytes([head | 0x80]) + varint(rest) if rest else bytes([head])
