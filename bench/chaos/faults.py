"""Every kind of fault: what it does, and when it is over.

Each function blocks until its fault is over. Faults come one at a time, so that each has its own recovery; pods come,
go and are edited all the time (load.py).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.chart.replica import Replica
from tests.controlplane import ApiError, PodState, eventually

from .load import Load
from .proxy import Treatment, Trouble, TroubledProxy
from .stage import UNAVAILABLE, Stage

# The API server's certificate is valid from an hour before its start, so the clock may not go back further.
_CLOCK_OFFSETS_SECONDS = (-45 * 60, -7, 0, 7, 10 * 60, 86_400)
_CUT_SECONDS = 0.3
_EDITED_PODS = 10
_DELETED_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Over:
    """`at`: the fault is over. Binds count as recovery from `serving_from` on; earlier ones were under way before."""

    at: float
    serving_from: float

    @classmethod
    def now(cls) -> Over:
        moment = time.monotonic()
        return cls(moment, moment)


@dataclass(frozen=True, slots=True)
class Scene:
    """What a fault may use. `pace` scales how long the lasting faults last."""

    stage: Stage
    load: Load
    draw: random.Random
    breaches: list[str]
    pace: float = 1.0

    def last(self, shortest_seconds: float, longest_seconds: float) -> None:
        time.sleep(self.pace * self.draw.uniform(shortest_seconds, longest_seconds))

    def some_proxies(self) -> Sequence[TroubledProxy]:
        """The leader's, or both."""
        if self.draw.random() < 0.5:
            return self.stage.proxies
        return [self.stage.proxies[self.stage.replicas.index(self.stage.leader())]]


def service_killed(scene: Scene) -> Over:
    """SIGKILL to the leader's vramcast, sometimes to both. Started again at once."""
    stage = scene.stage
    leader = stage.leader()
    killed = [leader] if scene.draw.random() < 0.7 else stage.replicas
    with stage.kubelet.hands_off(*(replica.service for replica in killed)):
        for replica in killed:
            replica.service.kill()
        for replica in killed:
            replica.service.start()
        restarted_at = time.monotonic()
    eventually(lambda: stage.accepts_connections(leader.url), what=f"{leader.name} to listen")
    return Over(restarted_at, time.monotonic())


def api_server_restarted(scene: Scene) -> Over:
    """SIGKILL, and started again at once. Over when it is ready."""
    ready_at = scene.stage.restart_apiserver()
    return Over(ready_at, ready_at)


def watches_cut(scene: Scene) -> Over:
    """Every watch connection is reset, again and again."""
    proxies = scene.some_proxies()
    for _ in range(scene.draw.randint(1, 8)):
        for proxy in proxies:
            proxy.cut_watches()
        time.sleep(_CUT_SECONDS)
    return Over.now()


def watches_silent(scene: Scene) -> Over:
    """The watch connections stay open, and nothing arrives."""
    proxies = scene.some_proxies()
    for proxy in proxies:
        proxy.silence_watches()
    scene.last(2, 10)
    for proxy in proxies:
        proxy.resume_watches()
    return Over.now()


def too_many_requests(scene: Scene) -> Over:
    """429 with Retry-After."""
    return _trouble(scene, Trouble((Treatment.TOO_MANY,), scene.draw.choice((0.3, 0.7, 1.0))))


def server_errors(scene: Scene) -> Over:
    """500, some of them for requests that took effect."""
    treatments = (Treatment.FAILED, Treatment.FAILED_AFTERWARDS)
    return _trouble(scene, Trouble(treatments, scene.draw.choice((0.3, 0.7, 1.0))))


def slow_answers(scene: Scene) -> Over:
    """Requests arrive up to 4 s late, most of them after vramcast has given up."""
    return _trouble(scene, Trouble((Treatment.LATE,), scene.draw.choice((0.3, 0.7)), longest_delay_seconds=4.0))


def answers_lost(scene: Scene) -> Over:
    """The request takes effect, and the connection breaks."""
    return _trouble(scene, Trouble((Treatment.LOST,), scene.draw.choice((0.3, 0.7))))


def _trouble(scene: Scene, trouble: Trouble) -> Over:
    proxies = scene.some_proxies()
    for proxy in proxies:
        proxy.trouble = trouble
    scene.last(2, 5)
    for proxy in proxies:
        proxy.trouble = None
    return Over.now()


def clock_stepped(scene: Scene) -> Over:
    """The wall clock of one vramcast jumps, by seconds or a day."""
    clock = scene.draw.choice(scene.stage.clocks)
    clock.step_to(scene.draw.choice([offset for offset in _CLOCK_OFFSETS_SECONDS if offset != clock.offset_seconds]))
    return Over.now()


def leader_crashed(scene: Scene) -> Over:
    """SIGKILL to kube-scheduler and vramcast. Over when another kube-scheduler holds the Lease."""
    stage = scene.stage
    holder, leader = _leadership(stage)
    with stage.kubelet.hands_off(*leader.processes):
        leader.kill()
        for process in leader.processes:
            process.start()
    stage.await_other_holder(holder)
    return Over.now()


def leader_rolled(scene: Scene) -> Over:
    """SIGTERM to both, as in a rollout. Over when the standby holds the Lease."""
    stage = scene.stage
    holder, leader = _leadership(stage)
    with stage.kubelet.hands_off(*leader.processes):
        leader.stop()
        stage.await_other_holder(holder)
        over = Over.now()
        for process in leader.processes:
            process.start()
    return over


def leader_paused(scene: Scene) -> Over:
    """Both are stopped until the standby holds the Lease, and resume as if nothing had happened."""
    stage = scene.stage
    holder, leader = _leadership(stage)
    leader.pause()
    try:
        stage.await_other_holder(holder)
        over = Over.now()
        scene.last(0, 2)
    finally:
        leader.resume()
    return over


def _leadership(stage: Stage) -> tuple[str, Replica]:
    leader = stage.leader()
    return stage.holder(), leader


def promises_edited(scene: Scene) -> Over:
    """Annotations of bound pods are edited: by an administrator, who is refused, and by an exempt account.

    The edited pods are deleted before the next fault: a replica that starts later would believe the edit
    (docs/security.md).
    """
    stage = scene.stage
    pods = _sample(scene, [pod for pod in stage.audit.pods()[1] if pod.holds_memory], _EDITED_PODS)
    for pod in pods:
        edit = {"metadata": {"annotations": _edit(scene.draw, pod)}}
        try:
            stage.api.patch_pod(pod.name, edit)
            scene.breaches.append(f"the policy let an administrator edit the promise of {pod}")
        except UNAVAILABLE as error:
            if not isinstance(error, ApiError) or error.status not in (403, 404, 422):
                raise
        _unless_gone(lambda name=pod.name, edit=edit: stage.editor.patch_pod(name, edit))  # type: ignore[misc]
    scene.last(2, 4)
    for pod in pods:
        _unless_gone(lambda name=pod.name: stage.api.delete_pod(name))  # type: ignore[misc]
    edited = {pod.uid for pod in pods}
    eventually(lambda: not edited & {pod.uid for pod in stage.audit.pods()[1]}, what="the edited pods to be gone")
    return Over.now()


def _edit(draw: random.Random, pod: PodState) -> dict[str, str | None]:
    memory, indices = "vramcast.dev/reserved-memory", "vramcast.dev/gpu-indices"
    other = "0" if pod.annotations["gpu-indices"] != "0" else "1"
    choices: tuple[dict[str, str | None], ...] = (
        {memory: "1Mi"}, {memory: "39Gi"}, {memory: "nonsense"}, {memory: None, indices: None}, {indices: other},
    )  # fmt: skip
    return draw.choice(choices)


def pods_deleted(scene: Scene) -> Over:
    """A third of all pods at once, whatever is under way for them."""
    stage = scene.stage
    pending, bound = stage.audit.pods()
    pods = _sample(scene, [*pending, *bound], int((len(pending) + len(bound)) * _DELETED_SHARE))
    stage.api.in_parallel(lambda pod: _unless_gone(lambda: stage.api.delete_pod(pod.name)), pods)
    return Over.now()


def cluster_full(scene: Scene) -> Over:
    """Nothing is deleted until no pending pod fits. Over when pods are deleted again."""
    stage, load = scene.stage, scene.load
    load.keeps_deleting = False
    try:
        full = lambda: bool(stage.audit.pods()[0]) and not stage.audit.waiting_with_room()  # noqa: E731
        eventually(full, what="no pending pod to fit", interval_seconds=0.2)
        scene.last(0, 3)
    finally:
        load.keeps_deleting = True
    return Over.now()


def _sample(scene: Scene, pods: list[PodState], most: int) -> list[PodState]:
    return scene.draw.sample(pods, min(most, len(pods)))


def _unless_gone(write: Callable[[], object]) -> None:
    try:
        write()
    except ApiError as error:
        if error.status != 404:
            raise


KINDS: tuple[Callable[[Scene], Over], ...] = (
    service_killed, api_server_restarted, watches_cut, watches_silent, too_many_requests, server_errors, slow_answers,
    answers_lost, clock_stepped, leader_crashed, leader_rolled, leader_paused, promises_edited, pods_deleted,
    cluster_full,
)  # fmt: skip
