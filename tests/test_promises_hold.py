"""Interleavings that once broke a promise, each as it was found."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.fakes import shared_pod
from tests.interleaving import NODE, World, record
from vramcast.cluster.seam import BindResult, Fate
from vramcast.controllers.maintenance import maintain, resolve_unconfirmed
from vramcast.controllers.takeover import take_over
from vramcast.names import PodUid
from vramcast.placement.changes import PodSeen, PodsListed
from vramcast.placement.promises import State
from vramcast.task.pod import PodRecord

FREE_MIB = 40960 - 450


def story(work: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        await work(World(**settings))

    asyncio.run(run())


async def bind_without_an_answer(world: World, pod: dict[str, Any]) -> None:
    await world.filter(pod)
    world.cluster.results.append(BindResult(Fate.UNKNOWN))
    await world.finish(await world.start(world.client.bind(pod, NODE)))


# ------------------------------------------------------------------ edits


@pytest.mark.parametrize("edit", [{"reserved_memory": "1Mi"}, {"gpu_indices": "7"}, {"reserved_memory": "many"}])
def test_an_edit_of_a_bound_pods_annotations_changes_no_promise(edit: dict[str, str]) -> None:
    async def work(world: World) -> None:
        pod = await world.place(shared_pod("p", "30Gi"))
        world.see(pod, **edit)
        assert world.room_mib() == FREE_MIB - 30 * 1024
        assert await world.filter(shared_pod("q", "30Gi")) == []

    story(work)


def test_a_pod_that_another_scheduler_bound_cannot_shrink_itself_later() -> None:
    async def work(world: World) -> None:
        pod = shared_pod("p", "30Gi")
        world.see(pod, NODE)
        world.see(pod, NODE, reserved_memory="1Mi")
        assert world.room_mib() == FREE_MIB - 30 * 1024

    story(work)


# ------------------------------------------------------------------ attempts


def test_a_stale_answer_about_an_unconfirmed_bind_does_not_withdraw_the_next_bind() -> None:
    async def work(world: World) -> None:
        pod = shared_pod("p", "30Gi")
        await bind_without_an_answer(world, pod)
        world.clock.now += 66
        world.cluster.pods["default/p"] = record(pod)
        resolving = await world.start(resolve_unconfirmed(world.service))
        world.calls.open[0].handle()  # not bound, as of now
        await world.filter(pod)
        again = await world.start(world.client.bind(pod, NODE))
        read, write = world.calls.open
        read.deliver()
        await resolving
        assert await world.filter(shared_pod("q", "30Gi")) == []
        write.deliver()
        assert await again == ""
        assert world.room_mib() == FREE_MIB - 30 * 1024
        promise = world.service.state.ledger.promise_of(PodUid("uid-p"))
        assert promise is not None
        assert promise.state is State.BOUND

    story(work)


def test_a_refused_bind_does_not_withdraw_another_bind_of_the_same_pod() -> None:
    async def work(world: World) -> None:
        pod = shared_pod("p", "30Gi")
        await world.filter(pod)
        world.cluster.results.extend([BindResult(Fate.REFUSED, "too many requests"), BindResult(Fate.BOUND)])
        first = await world.start(world.client.bind(pod, NODE))
        second = await world.start(world.client.bind(pod, NODE))
        one, two = world.calls.open
        one.deliver()
        await world.quiet()
        assert first.done()
        assert await world.filter(shared_pod("q", "30Gi")) == []
        two.deliver()
        await world.quiet()
        assert second.result() == ""
        assert world.room_mib() == FREE_MIB - 30 * 1024

    story(work)


def test_a_bind_that_succeeds_is_counted_whatever_happened_to_its_promise_meanwhile() -> None:
    async def work(world: World) -> None:
        pod = shared_pod("p", "30Gi")
        await world.filter(pod)
        binding = await world.start(world.client.bind(pod, NODE))
        promise = world.service.state.ledger.promise_of(PodUid("uid-p"))
        assert promise is not None
        world.service.state.ledger.withdraw(promise)
        await world.finish(binding)
        assert world.room_mib() == FREE_MIB - 30 * 1024

    story(work)


def test_a_defect_between_the_promise_and_its_write_leaves_no_promise_behind() -> None:
    async def work(world: World) -> None:
        pod = shared_pod("p", "30Gi")
        await world.filter(pod)

        def broken(*_: object) -> None:
            raise RuntimeError("a defect")

        world.service.state.product_on = broken  # type: ignore[method-assign,assignment]
        response = await world.client.send("POST", "/bind", _bind_body(pod))
        assert response.status == 500
        assert world.room_mib() == FREE_MIB

    story(work)


def _bind_body(pod: dict[str, Any]) -> bytes:
    metadata = pod["metadata"]
    return (
        f'{{"PodName":"{metadata["name"]}","PodNamespace":"default","PodUID":"{metadata["uid"]}","Node":"{NODE}"}}'
    ).encode()


# ------------------------------------------------------------------ trying again after a bind without an answer


def test_a_pod_is_not_kept_out_by_its_own_promise() -> None:
    async def work(world: World) -> None:
        pod = shared_pod("p", "30Gi")
        await bind_without_an_answer(world, pod)
        assert await world.filter(pod) == [NODE]
        assert await world.filter(shared_pod("q", "30Gi")) == []
        assert await world.finish(await world.start(world.client.bind(pod, NODE))) == ""
        first, second = world.cluster.writes
        assert first.annotations == second.annotations
        assert world.room_mib() == FREE_MIB - 30 * 1024

    story(work)


def test_a_pod_with_a_promise_is_offered_that_node_and_holds_no_other() -> None:
    async def work(world: World) -> None:
        pod = shared_pod("p", "30Gi")
        await bind_without_an_answer(world, pod)
        assert await world.filter(pod, ["a", "b"]) == [NODE]
        assert world.room_mib("b") == FREE_MIB
        assert await world.filter(pod, ["b"]) == ["b"]  # its own node is not among those that the scheduler asks about
        assert (world.room_mib("a"), world.room_mib("b")) == (FREE_MIB - 30 * 1024, FREE_MIB - 30 * 1024)

    story(work, nodes=("a", "b"))


def test_a_pod_that_needs_more_than_its_promise_waits_until_the_binding_cannot_arrive() -> None:
    async def work(world: World) -> None:
        await bind_without_an_answer(world, shared_pod("p", "10Gi"))
        grown = shared_pod("p", "20Gi")
        assert await world.filter(grown) == []
        world.see(grown)
        error = await world.finish(await world.start(world.client.bind(grown, NODE)))
        assert "held for pods that are being placed" in error
        assert world.room_mib() == FREE_MIB - 10 * 1024

    story(work)


# ------------------------------------------------------------------ the dead stay dead


class Election:
    """Lists the pods as they were when the list was handled."""

    def __init__(self, *pods: PodRecord) -> None:
        self.pods = list(pods)

    def read_lease(self, namespace: str, name: str) -> None: ...

    def list_pods(self) -> list[PodRecord]:
        return list(self.pods)

    def touch(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        return next((pod for pod in self.pods if pod.uid == uid), None)


def test_a_pod_that_ends_while_a_takeover_lists_it_leaves_no_promise() -> None:
    async def work(world: World) -> None:
        pod = shared_pod("p", "30Gi")
        election = Election(record(pod, NODE, reserved_memory="30Gi", gpu_indices="0"))
        taking = await world.start(take_over(world.service, election))
        world.calls.open[0].handle()
        world.see(pod, NODE, reserved_memory="30Gi", gpu_indices="0")
        world.lose(pod)
        await world.finish(taking)
        assert world.room_mib() == FREE_MIB

    story(work)


def test_a_pod_that_ends_while_maintenance_reads_it_leaves_no_promise() -> None:
    async def work(world: World) -> None:
        pod = shared_pod("p", "30Gi")
        await bind_without_an_answer(world, pod)
        world.clock.now += 66
        world.cluster.pods["default/p"] = record(pod, NODE, reserved_memory="30Gi", gpu_indices="0")
        resolving = await world.start(resolve_unconfirmed(world.service))
        world.calls.open[0].handle()
        world.lose(pod)
        await world.finish(resolving)
        assert world.room_mib() == FREE_MIB

    story(work)


def test_a_pod_that_ends_while_its_bind_reads_it_leaves_no_promise() -> None:
    async def work(world: World) -> None:
        pod = shared_pod("p", "30Gi")
        await world.filter(pod)
        seen = record(pod, NODE, reserved_memory="30Gi", gpu_indices="0")
        world.cluster.results.append(BindResult(Fate.REFUSED, "already bound", seen))
        binding = await world.start(world.client.bind(pod, NODE))
        world.calls.open[0].handle()
        world.lose(pod)
        await world.finish(binding)
        assert world.room_mib() == FREE_MIB

    story(work)


def test_a_pod_that_is_missing_from_a_later_list_is_gone_however_late_its_event_was_applied() -> None:
    async def work(world: World) -> None:
        pod = shared_pod("p", "30Gi")
        began = world.clock.now
        world.clock.now += 5  # the event loop was busy
        world.see(pod, NODE, reserved_memory="30Gi", gpu_indices="0")
        world.apply(PodsListed(frozenset(), began + 1))
        assert world.room_mib() == FREE_MIB

    story(work)


def test_a_pod_that_a_newer_read_shows_survives_an_older_list() -> None:
    async def work(world: World) -> None:
        pod, began = shared_pod("p", "30Gi"), world.clock.now
        world.clock.now += 5
        election = Election(record(pod, NODE, reserved_memory="30Gi", gpu_indices="0"))
        await world.finish(await world.start(take_over(world.service, election)))
        world.apply(PodsListed(frozenset(), began))
        assert world.room_mib() == FREE_MIB - 30 * 1024

    story(work)


# ------------------------------------------------------------------ holds


def test_a_hold_expires_on_time_even_if_maintenance_waits_for_the_api_server() -> None:
    async def work(world: World) -> None:
        await world.filter(shared_pod("held", "30Gi"))
        world.clock.now += 31
        assert await world.filter(shared_pod("q", "30Gi")) == [NODE]

    story(work)


def test_a_pod_that_passes_filter_for_ever_and_is_never_bound_does_not_starve_others() -> None:
    async def work(world: World) -> None:
        stuck, other = shared_pod("stuck", "30Gi"), shared_pod("other", "30Gi")
        waited = 0
        while not await world.filter(other):
            await world.filter(stuck)
            world.clock.now += 10
            waited += 10
            assert waited <= 120, "the stuck pod renews its hold for ever"

    async def stuck_first(world: World) -> None:
        await world.filter(shared_pod("stuck", "30Gi"))
        await work(world)

    story(stuck_first)


def test_a_pod_that_is_deleted_while_filter_waits_is_not_remembered() -> None:
    async def work(world: World) -> None:
        await world.filter(shared_pod("held", "30Gi"))
        pod = shared_pod("p", "30Gi")
        world.see(pod)
        waiting = await world.start(world.filter(pod))
        assert not waiting.done()
        world.lose(pod)
        await waiting
        assert len(world.service.state.unschedulable) == 0
        assert PodUid("uid-p") not in world.service.state.ledger.holds

    story(work, hold_wait_seconds=0.1)


def test_maintenance_expires_holds_while_a_call_hangs() -> None:
    async def work(world: World) -> None:
        pod = shared_pod("p", "10Gi")
        await bind_without_an_answer(world, pod)
        await world.filter(shared_pod("held", "10Gi"))
        world.clock.now += 66
        maintenance = asyncio.ensure_future(maintain(world.service))
        try:
            while not world.calls.open:
                await asyncio.sleep(0.01)
            assert world.client.service.state.ledger.holds == {}
            assert await world.filter(shared_pod("q", "25Gi")) == [NODE]
        finally:
            maintenance.cancel()

    story(work)


# ------------------------------------------------------------------ the listing that a promise survives


def test_a_pod_that_was_created_and_bound_after_a_list_began_survives_it() -> None:
    async def work(world: World) -> None:
        began = world.clock.now
        world.clock.now += 1
        pod = await world.place(shared_pod("p", "30Gi"))
        world.apply(PodsListed(frozenset(), began))
        assert world.room_mib() == FREE_MIB - 30 * 1024
        world.apply(PodSeen(record(pod)), PodsListed(frozenset(), world.clock.now + 1))
        assert world.room_mib() == FREE_MIB

    story(work)
