"""Who decides: the one whose kube-scheduler holds the Lease, no longer than that is sure, and after a takeover."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.fakes import FakeClock

from vramcast.cluster.objects import Lease
from vramcast.controllers.leadership import LeaseFollower
from vramcast.errors import NotLeading, WorldUnavailable

OURS = Lease("host-a_1", transitions=3, duration_seconds=15, renewal="12:00:00")
THEIRS = Lease("host-b_1", transitions=4, duration_seconds=15, renewal="12:00:20")


class Election:
    """A follower on host-a, the Lease that it looks at, and how often it took over."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.lease: Lease | None = None
        self.takeovers = 0
        self.fails = False
        self.follower = LeaseFollower(self._read_lease, "host-a", self.clock, patience_seconds=0.01)

    async def _read_lease(self) -> Lease | None:
        return self.lease

    async def take_over(self) -> None:
        assert not self.follower.leading, "nothing may be decided before the takeover is done"
        if self.fails:
            raise WorldUnavailable("the API server is away")
        self.takeovers += 1

    async def see(self, lease: Lease | None, after_seconds: float = 1.0) -> bool:
        self.clock.now += after_seconds
        self.lease = lease
        await self.follower.poll(self.take_over)
        return self.follower.leading


def run(story: Callable[[Election], Awaitable[None]]) -> None:
    async def begin() -> None:
        await story(Election())

    asyncio.run(begin())


def renewed(lease: Lease, times: int = 1) -> Lease:
    return replace(lease, renewal=f"{lease.renewal}+{times}")


def test_who_gets_the_lease_leads_after_a_takeover() -> None:
    async def story(election: Election) -> None:
        assert not await election.see(None)
        assert await election.see(OURS)
        assert election.takeovers == 1
        assert await election.see(renewed(OURS))
        assert election.takeovers == 1

    run(story)


def test_a_lease_that_was_there_before_us_counts_once_it_is_renewed() -> None:
    async def story(election: Election) -> None:
        assert not await election.see(OURS)
        assert not await election.see(OURS)
        assert await election.see(renewed(OURS))

    run(story)


def test_the_lease_of_another_host_is_not_ours_even_if_its_name_begins_alike() -> None:
    async def story(election: Election) -> None:
        await election.see(None)
        assert not await election.see(replace(OURS, holder="host-ab_1"))
        assert not await election.see(THEIRS)

    run(story)


def test_without_a_renewal_the_lead_ends_before_another_can_have_it() -> None:
    async def story(election: Election) -> None:
        await election.see(None)
        assert await election.see(OURS)
        # Ten of fifteen seconds after the last look that did not show this renewal, which was a second ago.
        election.clock.now += 8.9
        election.follower.check()
        election.clock.now += 0.2
        with pytest.raises(NotLeading, match="on standby"):
            election.follower.check()

    run(story)


def test_a_process_that_was_stopped_does_not_lead_when_it_goes_on() -> None:
    async def story(election: Election) -> None:
        await election.see(None)
        assert await election.see(OURS)
        election.clock.now += 14.9
        with pytest.raises(NotLeading):
            election.follower.check()
        # A renewal that it finds then may be as old as its sleep: the next one counts.
        assert not await election.see(renewed(OURS), after_seconds=0.0)
        assert await election.see(renewed(OURS, 2))

    run(story)


def test_a_lead_that_was_lost_and_won_again_needs_another_takeover() -> None:
    async def story(election: Election) -> None:
        await election.see(None)
        await election.see(OURS)
        assert not await election.see(THEIRS)
        assert await election.see(replace(OURS, transitions=5))
        assert election.takeovers == 2

    run(story)


def test_a_kube_scheduler_that_restarts_on_our_host_begins_another_term() -> None:
    async def story(election: Election) -> None:
        await election.see(None)
        await election.see(OURS)
        assert await election.see(replace(OURS, holder="host-a_2", transitions=4))
        assert election.takeovers == 2

    run(story)


def test_a_takeover_that_fails_is_tried_again_and_nothing_is_decided_meanwhile() -> None:
    async def story(election: Election) -> None:
        await election.see(None)
        election.fails = True
        with pytest.raises(WorldUnavailable):
            await election.see(OURS)
        with pytest.raises(NotLeading, match="not taken over yet"):
            election.follower.check()
        election.fails = False
        assert await election.see(renewed(OURS))
        assert election.takeovers == 1

    run(story)


def test_a_question_waits_a_moment_for_the_lease_to_show() -> None:
    async def story(election: Election) -> None:
        await election.see(None)
        with pytest.raises(NotLeading):
            await election.follower.await_lead()
        following = asyncio.create_task(election.follower.follow(election.take_over))
        election.lease = OURS
        await election.follower.await_lead()
        following.cancel()

    run(story)
