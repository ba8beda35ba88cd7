"""A walk: one legal step after another. Some steps are short for several that only matter in a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.fakes import FakeClock
from tests.interleaving import Call
from tests.machine.api_server import LEASE_SECONDS, ApiServer, Stored
from tests.machine.choices import THEMES, Choices, Kind
from tests.machine.replica import LOOP, Replica
from vramcast.controllers.maintenance import requeue_unschedulable, resolve_unconfirmed
from vramcast.placement.promises import State

FREE_MIB = 40960 - 450
# A small pod fits twice on a GPU, so it can be bound again; next to a large one it breaks a promise.
NEEDS = ("15Gi", "30Gi")
MAX_PENDING = 2
# What becomes of a call. Most arrive; the first ones lose the answer to a Binding.
LOSSES = ("late", "late", "answer lost", "late, pod read", "answer lost, pod read", "failed once")
BIND_FAULTS = ("none", "none", "none", "refused", "refused", *LOSSES, "unreachable")
OTHER_FAULTS = ("none", "none", "none", "none", "none", "none", "unreachable", "answer lost")


class Walk:
    def __init__(self, choices: bytes, kinds: Sequence[Kind]) -> None:
        self.choices = Choices(choices)
        self.pick = self.choices.pick
        self.clock = LOOP.clock = FakeClock()
        self.api = ApiServer(self.clock)
        self.api.meanwhile = self._meanwhile
        self.created = self.failures = 0
        theme = self.pick(THEMES)
        elected = theme == "takeovers" or self.pick([False, True])
        self.nodes = self.pick([("a",), ("a", "b")])
        self.gangs = theme in ("holds", "any") and self.pick([False, True])
        for _ in range(2):
            self.create()
        names = ("x", "y") if elected else ("x",)
        self.replicas = [Replica(name, self.api, self.nodes, elected=elected) for name in names]
        self.edited = False
        self._busy = False
        if elected:
            self.replicas[0].lead()
        self.weights = self.choices.swarm(kinds, theme)

    def step(self) -> None:
        possible = [kind for kind in self.weights if kind.possible(self)]
        self.pick([kind for kind in possible for _ in range(self.weights[kind])]).take(self)

    # ------------------------------------------------------------------ who there is

    @property
    def elected(self) -> bool:
        return self.replicas[0].elected

    @property
    def leader(self) -> Replica:
        """Whose scheduler holds the Lease."""
        return next((r for r in self.replicas if r.identity == self.api.lease.holder), self.replicas[0])

    def pending(self) -> list[Stored]:
        return [pod for pod in self.api.unfinished() if pod.node is None]

    def bound(self) -> list[Stored]:
        return [pod for pod in self.api.unfinished() if pod.node is not None]

    def singles(self) -> list[Stored]:
        return [pod for pod in self.pending() if not pod.gang]

    def members(self) -> list[Stored]:
        return [pod for pod in self.pending() if pod.gang]

    def that(self, has: Callable[[Replica], object]) -> list[Replica]:
        return [replica for replica in self.replicas if has(replica)]

    def scheduling(self) -> list[Replica]:
        """Schedulers that start cycles; usually it is the leader's."""
        return [self.leader] * 2 + self.that(lambda r: not r.retired)

    def chosen(self) -> list[tuple[Replica, Stored]]:
        """Pods that passed filter and are not bound yet, with their scheduler."""
        return [(r, pod) for r in self.replicas for pod in self.pending() if r.offered.get(pod.uid)]

    # ------------------------------------------------------------------ the world

    def create(self) -> None:
        self.created += 1
        gang = "g" if self.gangs and self.pick([True, True, False]) else ""
        self.api.create(f"p{self.created}", self.pick(NEEDS), gang)

    def delete(self) -> None:
        self.api.delete(self.pick(list(self.api.pods.values())))

    def finish(self) -> None:
        pod = self.pick(self.bound())
        pod.status["phase"] = "Succeeded"
        self.api.store(pod)

    def end_and_show(self) -> None:
        """A pod ends, and the watches show it at once, before any answer that is under way."""
        self.pick([self.delete, self.finish] if self.bound() else [self.delete])()
        for replica in self.that(lambda r: r.listing is None):
            replica.watch(replica.unseen)

    def edit_bound(self) -> None:
        pod = self.pick(self.bound())
        pod.annotations["vramcast.dev/reserved-memory"] = self.pick(["1Mi", "39Gi", "nonsense"])
        self.edited = True
        self.api.store(pod)

    def edit_pending(self) -> None:
        pod = self.pick(self.pending())
        pod.annotations["vramcast.dev/gpu-memory"] = self.pick(NEEDS)
        self.api.store(pod)

    def watch(self) -> None:
        replica = self.pick(self.that(lambda r: r.listing is None and r.unseen))
        replica.watch(self.pick([100, 1, 2, 3]))

    def break_watch(self) -> None:
        self.clock.now += 1
        self.pick(self.that(lambda r: r.listing is None)).begin_list()

    def list_arrives(self) -> None:
        self.clock.now += 1
        self.pick(self.that(lambda r: r.listing is not None)).finish_list()

    def time_passes(self) -> None:
        self.wait(self.pick([70, 35, 1]))

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.api.drop_dead_writes()
        if self.elected and self.leader.may_poll():
            self.leader.lead()

    # ------------------------------------------------------------------ the scheduler

    def filter(self) -> tuple[Replica, Stored]:
        replica, pod = self.pick(self.scheduling()), self.pick(self.singles())
        self._filter(replica, pod)
        return replica, pod

    def _filter(self, replica: Replica, pod: Stored) -> None:
        """With the newest version of the pod, or with the one before, if the scheduler has not seen more yet."""
        replica.offered.pop(pod.uid, None)
        version = self.pick([-1, -1, -2] if len(pod.versions) > 1 else [-1])
        replica.spawn(replica.filter(pod, version))
        own, offered = replica.service.state.ledger.promise_of(pod.uid), replica.offered.get(pod.uid)
        if own is None or own.state is State.BOUND or offered is None or not replica.leading:
            return
        if (own.need_mib or 0) >= pod.need_mib_in(version):
            assert own.node in offered, f"{pod} has a promise on {own.node} and is offered {offered}"

    def schedule(self) -> tuple[Replica, Stored]:
        replica, pod = self.filter()
        self._bind_chosen(replica, pod)
        return replica, pod

    def schedule_twice(self) -> None:
        """After a timeout of its own the scheduler tries again, while the first bind is under way."""
        replica, pod = self.schedule()
        self._filter(replica, pod)
        self._bind_chosen(replica, pod)

    def _bind_chosen(self, replica: Replica, pod: Stored) -> None:
        if offered := replica.offered.pop(pod.uid, []):
            replica.spawn(replica.bind(pod, self.pick(offered)))

    def bind_chosen(self) -> None:
        self._bind_chosen(*self.pick(self.chosen()))

    def place(self) -> None:
        """A whole cycle whose calls are all answered at once."""
        self._answer_binds(self.schedule()[0], ["none"])

    def place_unanswered(self) -> tuple[Replica, Stored]:
        replica, pod = self.schedule()
        self._answer_binds(replica, LOSSES)
        return replica, pod

    def place_again(self) -> None:
        """While maintenance looks for a Binding that got no answer, the scheduler binds the pod again."""
        replica, pod = self.place_unanswered()
        self.wait(70)
        self._read_for_resolving(replica)
        if pod.node is None:
            self._filter(replica, pod)
            self._bind_chosen(replica, pod)

    def _answer_binds(self, replica: Replica, faults: Sequence[str]) -> None:
        """Only the newest one: an older bind of the same pod stays under way."""
        while (waiting := replica.waiting()) and waiting[-1].name in ("bind", "_forecast_all"):
            self.handle_call(waiting[-1], self.pick(faults))
            waiting[-1].deliver()
            replica.turn()
            faults = ["none"]

    def nominate(self) -> None:
        """Before it binds a pod with a claim, a volume or a gang, the scheduler writes which node it has chosen."""
        replica, pod = self.pick(self.chosen())
        node = self.pick(replica.offered[pod.uid])
        replica.offered[pod.uid] = [node]
        pod.status["nominatedNodeName"] = node
        self.api.store(pod)

    def fail(self) -> None:
        """The scheduler gives this attempt up."""
        pod = self.pick(self.pending())
        self._fail(pod)

    def _fail(self, pod: Stored) -> None:
        self.failures += 1
        for replica in self.replicas:
            replica.offered.pop(pod.uid, None)
        pod.status.pop("nominatedNodeName", None)
        message = f"attempt {self.failures} failed"
        pod.status["conditions"] = [{"type": "PodScheduled", "status": "False", "message": message}]
        self.api.store(pod)

    def schedule_gang(self) -> None:
        """All members are filtered in a row. If each is offered a node, all are bound."""
        replica, members = self.pick(self.scheduling()), self.members()
        for pod in members:
            self._filter(replica, pod)
        placed = all(replica.offered.get(pod.uid) for pod in members)
        for pod in members:
            if placed:
                self._bind_chosen(replica, pod)
            else:
                self._fail(pod)

    # ------------------------------------------------------------------ answers, late or lost

    def handle_call(self, call: Call, fault: str) -> None:
        self.api.begin_call(fault)
        self._busy = True
        call.handle()
        self._busy = False
        self.api.begin_call("none")

    def _meanwhile(self) -> None:
        """Between two requests of one call. What happens on the event loop then, the call cannot notice."""
        if not self._busy or self.pick([True, True, False]):
            return
        self._busy = False
        steps = [self.handle] * any(r.waiting() for r in self.replicas) + [self.land] * bool(self.api.late_writes)
        steps += [self.edit_pending, self.fail] * bool(self.pending()) + [self.nominate] * bool(self.chosen())
        if steps:
            before = self.api.fault
            self.pick(steps)()
            self.api.fault = before
        self._busy = True

    def handle(self) -> None:
        self._handle_one()

    def _handle_one(self) -> tuple[Replica, Call]:
        replica = self.pick(self.that(Replica.waiting))
        call = self.pick(replica.waiting())
        faults = {"bind": BIND_FAULTS, "_forecast_all": ["none"]}
        self.handle_call(call, self.pick(faults.get(call.name, OTHER_FAULTS)))
        return replica, call

    def answer(self) -> None:
        replica, call = self._handle_one()
        call.deliver()
        replica.turn()

    def answer_all(self) -> None:
        replica = self.pick(self.that(Replica.waiting))
        for call in replica.waiting():
            self.handle_call(call, "none")
            call.deliver()
        replica.turn()

    def deliver(self) -> None:
        replica = self.pick(self.that(Replica.handled))
        self.pick(replica.handled()).deliver()
        replica.turn()

    def land(self) -> None:
        self.api.land(self.pick(self.api.late_writes))

    # ------------------------------------------------------------------ what runs by itself

    def resolve(self) -> None:
        replica = self.pick(self.replicas)
        replica.spawn(resolve_unconfirmed(replica.service))

    def resolve_stale(self) -> None:
        self._read_for_resolving(self.pick(self.replicas))

    def _read_for_resolving(self, replica: Replica) -> None:
        """The API server has read the pod. The answer comes later, and is old by then."""
        before = replica.waiting()
        replica.spawn(resolve_unconfirmed(replica.service))
        for call in [call for call in replica.waiting() if call not in before]:
            self.handle_call(call, "none")

    def resolve_at_once(self) -> None:
        replica = self.pick(self.replicas)
        replica.run(resolve_unconfirmed(replica.service))

    def requeue(self) -> None:
        replica = self.pick(self.replicas)
        replica.spawn(requeue_unschedulable(replica.service))

    def restart(self) -> None:
        replica = self.pick(self.replicas)
        replica.stop()
        if self.elected:
            self.api.outlive()
        else:
            # Without a version only the broken connection stops a Binding, so it arrives now or never.
            for write in list(self.api.late_writes):
                self.pick([self.api.late_writes.remove, self.api.land])(write)
        replica.start()

    # ------------------------------------------------------------------ the Lease

    def poll(self) -> None:
        replica = self.pick(self.that(Replica.may_poll))
        replica.polling = replica.spawn(replica.poll())

    def heartbeat(self) -> None:
        self.leader.lead()

    def fail_over(self) -> None:
        """The leader is paused, or cannot reach the API server, and the other scheduler waits for its Lease to end."""
        self.clock.now = max(self.clock.now, self.api.lease.renewed_at + LEASE_SECONDS) + 0.1
        self._other_leads()

    def hand_over(self) -> None:
        """The leader's scheduler stops and releases the Lease."""
        self.leader.retired = True
        self._other_leads()

    def _other_leads(self) -> None:
        other = self._standby()
        self.api.outlive()
        other.lead()

    def fail_over_halfway(self) -> None:
        """The new leader has listed the pods, and not touched them yet."""
        self.clock.now = max(self.clock.now, self.api.lease.renewed_at + LEASE_SECONDS) + 0.1
        other = self._standby()
        other.run(other.poll())
        other.retired = False
        self.api.outlive()
        self.api.renew_lease(other.identity)
        before = other.waiting()
        other.polling = other.spawn(other.poll())
        for _ in ("the Lease", "the list"):
            for call in [call for call in other.waiting() if call not in before]:
                self.handle_call(call, "none")
                call.deliver()
            other.turn()

    def fail_over_overtaken(self) -> None:
        """A Binding of the former leader arrives after the new leader's list, and before it touches the pod."""
        before = list(self.api.late_writes)
        replica, _ = self.schedule()
        self._answer_binds(replica, ["late"])
        self.fail_over_halfway()
        for write in [write for write in self.api.late_writes if write not in before]:
            self.api.land(write)

    def fail_over_unanswered(self) -> None:
        """The former leader keeps a promise for a Binding whose fate it does not know. The pod may be edited since."""
        _, pod = self.place_unanswered()
        self.fail_over()
        if pod.node is None and self.pick([False, True]):
            pod.annotations["vramcast.dev/gpu-memory"] = self.pick(NEEDS)
            self.api.store(pod)

    def hand_over_binding(self) -> None:
        """The former leader's bind is still under way when the new leader leads."""
        self.schedule()
        self.hand_over()

    def _standby(self) -> Replica:
        return next(replica for replica in self.replicas if replica is not self.leader)

    def may_fail_over(self) -> bool:
        return self.elected and all(replica.may_poll() for replica in self.replicas)

    def stop(self) -> None:
        for replica in self.replicas:
            replica.stop()
