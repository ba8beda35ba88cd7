"""The packing of openb on a real kube-scheduler: does it put the policies in the same order as the simulator does?

python -m bench.cluster.replay --data DIR [--nodes 1000] [--seed 0] [--out docs/benchmarks/packing-replay.md]

KWOK plays the nodes. Pods are created in the order of the draw, a few ahead of the scheduler, and stay. Under every
policy vramcast decides where there is room and binds; what differs is the ranking:

- vramcast: filter offers its best nodes, and prioritize ranks them;
- MostAllocated and LeastAllocated: the kube-scheduler's NodeResourcesFit alone ranks all nodes, by CPU and memory;
- random: nothing ranks them, so the kube-scheduler draws one.

The kube-scheduler's log tells in which order pods were bound and which pod failed first.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from bench.cluster.packing import (
    GPU,
    Cluster,
    Fragmentation,
    Node,
    Pod,
    Result,
    Vramcast,
    allocated,
    any_node,
    draw_pods,
    pack,
    read_nodes,
    read_pods,
)
from bench.scheduler import VRAMCAST as VRAMCAST_COMMAND
from bench.scheduler import prepare, start_extender
from tests.controlplane import ControlPlane, eventually, extender, scheduler_config
from tests.controlplane.objects import GpuProduct, shared_pod, sharing_node

from vramcast.hardware.products import UNKNOWN_RESERVE_MIB
from vramcast.placement.board import DEFAULT_RANKING
from vramcast.placement.ledger import Ledger

VRAMCAST, MOST, LEAST, RANDOM = "vramcast", "MostAllocated", "LeastAllocated", "random"
POLICIES = (VRAMCAST, MOST, LEAST, RANDOM)
_SETTINGS = {
    VRAMCAST: "",
    # Where the scheduler alone ranks, it must see all nodes.
    MOST: "VRAMCAST_MOST_NODES_OFFERED=0",
    LEAST: "VRAMCAST_MOST_NODES_OFFERED=0",
    RANDOM: "VRAMCAST_MOST_NODES_OFFERED=0",
}
# A pod that found only held room is soon tried again. After so long without a bind, what is left has failed for good.
_SETTLED_SECONDS = 10.0
# The first failure is looked for. A pod may fail once and be bound later, so a few more are awaited.
_ENOUGH_FAILED = 5
# Pods that are created and neither bound nor failed. Several are on their way to bind at once, as in a busy cluster.
WAITING = 10
_MIB_PER_MILLI = 16
_NAME = "replay"
_BOUND = re.compile(rb'"Successfully bound pod to node" pod="default/(pod-\d+)"')
_FAILED = re.compile(rb'"Unable to schedule pod; no fit; waiting" pod="default/(pod-\d+)"')


@dataclass(frozen=True, slots=True)
class Replayed:
    """Shares of the cluster's GPUs."""

    policy: str
    first_failure: float
    simulated: float
    bound: int
    pods_per_second: float


def node_manifest(node: Node) -> dict[str, Any]:
    gpu = GpuProduct(f"openb-{node.model}", GPU * _MIB_PER_MILLI + UNKNOWN_RESERVE_MIB, "openb")
    cpu, memory = f"{node.cpu}m", f"{node.memory}Mi"
    return sharing_node(str(node.name), gpu, node.gpus, cpu=cpu, memory=memory, pods="500")


def pod_manifest(number: int, pod: Pod) -> dict[str, Any]:
    asked = {"cpu": f"{pod.cpu}m", "memory": f"{pod.memory}Mi"}
    memory = f"{pod.milli * _MIB_PER_MILLI}Mi"
    return shared_pod(f"pod-{number:06}", memory, pod.gpus, scheduler=_NAME, resources=asked)


def scheduler_of(policy: str, url: str) -> dict[str, Any]:
    if policy == VRAMCAST:
        return scheduler_config(extender(url), name=_NAME)
    resources = [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]
    profile: dict[str, Any] = {
        "schedulerName": _NAME,
        "percentageOfNodesToScore": 100,
        "plugins": {"score": {"disabled": [{"name": "*"}]}},
    }
    if policy != RANDOM:
        strategy = {"scoringStrategy": {"type": policy, "resources": resources}}
        profile["plugins"]["score"]["enabled"] = [{"name": "NodeResourcesFit"}]
        profile["pluginConfig"] = [{"name": "NodeResourcesFit", "args": strategy}]
    return scheduler_config(extender(url, verbs=("filter", "bind")), profiles=[profile])


def replay(policy: str, nodes: Sequence[Node], pods: Sequence[Pod]) -> tuple[bytes, float]:
    """The scheduler's log, and the seconds that it took."""
    with ControlPlane() as plane:
        prepare(plane, (node_manifest(node) for node in nodes))
        process = start_extender(plane, "vramcast", f"env {_SETTINGS[policy]} {VRAMCAST_COMMAND}")
        try:
            log = plane.scheduler(scheduler_of(policy, process.url)).log
            begin = time.monotonic()
            progress = Progress(policy, log)
            for number, pod in enumerate(pods):
                # The scheduler takes pods in the order in which it hears of them. It hears of pods that are there
                # before it starts in any order.
                eventually(partial(progress.has_room, number), 600, "pods are bound or have failed", 0.02)
                if len(progress.failed - progress.bound) >= _ENOUGH_FAILED:
                    break
                plane.api.create_pod(pod_manifest(number, pod))
                progress.created += 1
            eventually(progress.over, 600, "every pod is bound or has failed", interval_seconds=1.0)
            return log.read_bytes(), time.monotonic() - begin
        finally:
            process.terminate()


@dataclass(slots=True)
class Progress:
    policy: str
    log: Path
    created: int = 0
    shown: int = 0
    read: int = 0  # bytes of the log
    bound: set[bytes] = field(default_factory=set)
    failed: set[bytes] = field(default_factory=set)
    since: float = 0.0  # the last bind

    def has_room(self, created: int) -> bool:
        """So many pods wait at most: more would overtake each other when binds are slow."""
        self._look()
        return created - len(self.bound | self.failed) < WAITING

    def over(self) -> bool:
        self._look()
        done = len(self.bound | self.failed) >= self.created
        return done and time.monotonic() - self.since > _SETTLED_SECONDS

    def _look(self) -> None:
        with self.log.open("rb") as file:
            file.seek(self.read)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self.read += len(text)
        new = set(_BOUND.findall(text)) - self.bound
        self.failed |= set(_FAILED.findall(text))
        if new:
            self.bound |= new
            self.since = time.monotonic()
        if len(self.bound) >= self.shown + 500:
            self.shown = len(self.bound)
            failed = len(self.failed - self.bound)
            print(f"{self.policy}: {len(self.bound)} of {self.created} pods bound, {failed} failed", flush=True)


def first_failure(log: bytes) -> int:
    """Where the scheduler's log has it; its end if there is none. A pod that was bound later has not failed."""
    bound = set(_BOUND.findall(log))
    return next((match.start() for match in _FAILED.finditer(log) if match[1] not in bound), len(log))


def taken(log: bytes, nodes: Sequence[Node], pods: Sequence[Pod]) -> tuple[float, int]:
    """The share of the GPUs, and how many pods were bound, at the first failure."""
    bound = set(_BOUND.findall(log, 0, first_failure(log)))
    wanted = sum(pods[int(name.rpartition(b"-")[2])].wanted for name in bound)
    return wanted / (GPU * sum(node.gpus for node in nodes)), len(bound)


def simulated(policy: str, nodes: list[Node], pods: list[Pod], seed: int) -> Result:
    whole = Cluster.of(nodes)
    if policy == VRAMCAST:
        choose = Vramcast(nodes, Random(seed), Ledger(ranking=DEFAULT_RANKING)).choose
    elif policy == RANDOM:
        choose = any_node(Random(seed))
    else:
        choose = allocated(whole, Random(seed), most=policy == MOST)
    return pack(nodes, pods, choose, Fragmentation(pods))


def page(results: Sequence[Replayed], nodes: int, gpus: int, pods: int) -> str:
    lines = [
        f"| {one.policy} | {one.first_failure:.1%} | {one.simulated:.1%} | {one.bound:,} | {one.pods_per_second:.0f} |"
        for one in results
    ]
    real, expected = (
        ", ".join(one.policy for one in sorted(results, key=key, reverse=True))
        for key in (lambda one: one.first_failure, lambda one: one.simulated)
    )
    return f"""# Packing on the real kube-scheduler

`python -m bench.cluster.replay --data DIR --nodes {nodes} --out docs/benchmarks/packing-replay.md`: nodes of Alibaba's
openb trace ({nodes:,} with {gpus:,} GPUs), played by KWOK, and pods drawn from it until they would ask for all GPUs
({pods:,} pods, one draw). A real kube-scheduler places them in the order of the draw, until five have failed. Under
every policy vramcast's filter and bind keep the memory of each GPU; what differs is the ranking. *vramcast*: as it is
installed. *MostAllocated* and *LeastAllocated*: the scheduler's NodeResourcesFit alone ranks all nodes, by CPU and
memory. *random*: nothing ranks them. Beside it, what the [simulator](packing.md) says of the same nodes and pods.

| policy | GPUs taken at the first failure | simulated | pods bound by then | pods a second |
|---|---|---|---|---|
{chr(10).join(lines)}

Best first, really: {real}. Simulated: {expected}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="has clusters/openb_*.csv")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policies", default="+".join(POLICIES), help="joined by +")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    random = Random(arguments.seed)
    nodes = random.sample(read_nodes(arguments.data / "clusters/openb_node_list_gpu_node.csv"), arguments.nodes)
    trace = [pod for pod in read_pods(arguments.data / "clusters/openb_pod_list_default.csv") if pod.gpus]
    gpus = sum(node.gpus for node in nodes)
    pods = draw_pods(trace, GPU * gpus, random)
    results = []
    for policy in arguments.policies.split("+"):
        expected = simulated(policy, nodes, pods, arguments.seed)
        log, seconds = replay(policy, nodes, pods)
        share, bound = taken(log, nodes, pods)
        rate = len(set(_BOUND.findall(log))) / seconds
        results.append(Replayed(policy, share, expected.first_failure, bound, rate))
        print(results[-1], flush=True)
        # Written after every policy, so an interrupted run still has a result.
        if arguments.out:
            arguments.out.write_text(page(results, len(nodes), gpus, len(pods)), encoding="utf-8")


if __name__ == "__main__":
    main()
