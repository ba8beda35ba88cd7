"""A replica decides only after a takeover, and only while its kube-scheduler certainly holds the Lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.fakes import FakeClock

from vramcast.cluster.objects import Lease
from vramcast.controllers.leadership import POLL_SECONDS, LeaseFollower
from vramcast.errors import NotLeading, WorldUnavailable

OURS = Lease("host-a_1", transitions=3, duration_seconds=15, renewal="12:00:00")
THEIRS = Lease("host-b_1", transitions=4, duration_seconds=15, renewal="12:00:20")


class Election:
    """A follower on host-a, the Lease that it polls, and a count of its takeovers."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.lease: Lease | None = None
        self.takeovers = 0
        self.takeover_fails = False
        self.follower = LeaseFollower(self._read_lease, "host-a", self.clock, patience_seconds=0.01)

    async def _read_lease(self) -> Lease | None:
        return self.lease

    async def take_over(self) -> None:
        assert not self.follower.leading, "a replica must not lead before the takeover is done"
        if self.takeover_fails:
            raise WorldUnavailable("the API server is down")
        self.takeovers += 1

    async def see(self, lease: Lease | None, after_seconds: float = 1.0) -> bool:
        self.clock.now += after_seconds
        self.lease = lease
        await self.follower.poll(self.take_over)
        return self.follower.leading


def run(scenario: Callable[[Election], Awaitable[None]]) -> None:
    async def play() -> None:
        await scenario(Election())

    asyncio.run(play())


def renewed(lease: Lease, times: int = 1) -> Lease:
    return replace(lease, renewal=f"{lease.renewal}+{times}")


def test_the_holder_of_the_lease_leads_after_a_takeover() -> None:
    async def scenario(election: Election) -> None:
        assert not await election.see(None)
        assert await election.see(OURS)
        assert election.takeovers == 1
        assert await election.see(renewed(OURS))
        assert election.takeovers == 1

    run(scenario)


def test_a_lease_found_at_startup_counts_once_it_is_renewed() -> None:
    async def scenario(election: Election) -> None:
        assert not await election.see(OURS)
        assert not await election.see(OURS)
        assert await election.see(renewed(OURS))

    run(scenario)


def test_a_replica_whose_lease_still_lacks_a_renewal_polls_more_often() -> None:
    async def scenario(election: Election) -> None:
        await election.see(THEIRS)
        assert election.follower.poll_seconds == POLL_SECONDS
        election.follower = LeaseFollower(election._read_lease, "host-a", election.clock)
        await election.see(OURS)
        assert election.follower.poll_seconds < POLL_SECONDS
        await election.see(renewed(OURS))
        assert election.follower.poll_seconds == POLL_SECONDS

    run(scenario)


def test_another_hosts_lease_does_not_count_even_with_the_same_name_prefix() -> None:
    async def scenario(election: Election) -> None:
        await election.see(None)
        assert not await election.see(replace(OURS, holder="host-ab_1"))
        assert not await election.see(THEIRS)

    run(scenario)


def test_without_a_renewal_a_replica_stops_leading_before_another_can_start() -> None:
    async def scenario(election: Election) -> None:
        await election.see(None)
        assert await election.see(OURS)
        # Ten of the Lease's fifteen seconds, counted from the poll before the renewal. That poll was a second ago.
        election.clock.now += 8.9
        election.follower.check()
        election.clock.now += 0.2
        with pytest.raises(NotLeading, match="on standby"):
            election.follower.check()

    run(scenario)


def test_a_paused_process_does_not_lead_when_it_resumes() -> None:
    async def scenario(election: Election) -> None:
        await election.see(None)
        assert await election.see(OURS)
        election.clock.now += 14.9
        with pytest.raises(NotLeading):
            election.follower.check()
        # The first renewal it sees may be as old as the pause, so only the next one counts.
        assert not await election.see(renewed(OURS), after_seconds=0.0)
        assert await election.see(renewed(OURS, 2))

    run(scenario)


def test_winning_the_lease_back_needs_another_takeover() -> None:
    async def scenario(election: Election) -> None:
        await election.see(None)
        await election.see(OURS)
        assert not await election.see(THEIRS)
        assert await election.see(replace(OURS, transitions=5))
        assert election.takeovers == 2

    run(scenario)


def test_a_kube_scheduler_that_restarts_on_our_host_starts_a_new_term() -> None:
    async def scenario(election: Election) -> None:
        await election.see(None)
        await election.see(OURS)
        assert await election.see(replace(OURS, holder="host-a_2", transitions=4))
        assert election.takeovers == 2

    run(scenario)


def test_a_failed_takeover_is_retried_and_nothing_is_decided_until_it_succeeds() -> None:
    async def scenario(election: Election) -> None:
        await election.see(None)
        election.takeover_fails = True
        with pytest.raises(WorldUnavailable):
            await election.see(OURS)
        with pytest.raises(NotLeading, match="not taken over yet"):
            election.follower.check()
        election.takeover_fails = False
        assert await election.see(renewed(OURS))
        assert election.takeovers == 1

    run(scenario)


def test_a_request_waits_briefly_for_the_lease_to_appear() -> None:
    async def scenario(election: Election) -> None:
        await election.see(None)
        with pytest.raises(NotLeading):
            await election.follower.await_lead()
        following = asyncio.create_task(election.follower.follow(election.take_over))
        election.lease = OURS
        await election.follower.await_lead()
        following.cancel()

    run(scenario)
