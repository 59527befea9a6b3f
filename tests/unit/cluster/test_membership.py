"""When a broker may still rely on its lease."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from typing_extensions import override

from pydanube.cluster.membership import LeaseTerms, Membership
from pydanube.cluster.records import BrokerRecord
from pydanube.errors import Unavailable
from pydanube.metadata import keys
from pydanube.metadata.memory_store import MemoryMetadataStore
from pydanube.model.ids import BrokerId
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.tasks import TaskScope

ME = BrokerId(7)
TERMS = LeaseTerms(ttl_ms=2_000)
RECORD = BrokerRecord(broker_url="http://x:1", connect_url="http://x:1", admin_url="http://x:2")


class Store(MemoryMetadataStore):
    """Lets renewals wait, as a cluster does that elects a leader, and lets no lease end then.

    Some of the first leases may end at once.
    """

    leader: asyncio.Event | None = None
    short = 0

    @override
    async def grant_lease(self, ttl_ms: int) -> int:
        lease = await super().grant_lease(ttl_ms)
        if self.short:
            self.short -= 1
            await self.revoke_lease(lease)
        return lease

    @override
    async def renew_lease(self, lease: int) -> None:
        if self.leader is not None:
            await self.leader.wait()
        await super().renew_lease(lease)

    @override
    def _propose_expiry(self, now_ms: int) -> None:
        if self.leader is None or self.leader.is_set():
            super()._propose_expiry(now_ms)


class Member:
    """A broker that has not joined yet, and its metadata."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.store = Store(self.clock)
        self.tasks = TaskScope(lambda name, error: None)
        self.membership = Membership(self.store, self.clock, self.tasks, ME, RECORD, TERMS)
        self.told: list[object] = []
        """What the guard said whenever listeners were told."""
        self.membership.tells(lambda: self.told.append(self.membership.guard()))

    @property
    def is_registered(self) -> bool:
        return self.store.get(keys.registration(ME)) is not None

    async def lose_lease(self) -> None:
        assert self.membership.lease is not None
        await self.store.revoke_lease(self.membership.lease)


def live(life: Callable[[Member], Awaitable[None]]) -> None:
    async def run(_: Randomness) -> None:
        member = Member()
        await life(member)
        await member.tasks.close()

    run_simulated(run, "membership", seconds_max=100, steps_max=100_000)


def test_a_broker_stops_before_others_may_begin() -> None:
    async def life(member: Member) -> None:
        membership, clock = member.membership, member.clock
        assert isinstance(membership.guard(), Unavailable), "not before it has joined"
        await membership.join()
        await clock.sleep(10)
        assert membership.guard() is None
        await member.tasks.close()  # It renews no more, as a process that stands still.
        member.told.clear()
        while membership.guard() is None:
            assert member.is_registered
            await clock.sleep(0.01)
        assert membership.guard() == "wait", "a renewal may still be on its way"
        assert member.is_registered, "its lease outlasts its own trust"
        await clock.sleep(0.01)
        assert member.told == ["wait"]
        await clock.sleep(3)
        assert not member.is_registered
        assert isinstance(membership.guard(), Unavailable)
        assert len(member.told) == 2
        assert isinstance(member.told[1], Unavailable), "whoever waits is told that it was in vain"

    live(life)


def test_what_waits_for_a_renewal_is_told_when_it_has_succeeded() -> None:
    async def life(member: Member) -> None:
        membership, clock = member.membership, member.clock
        await membership.join()
        claim = membership.claim()
        member.store.leader = asyncio.Event()
        while membership.guard() is None:
            await clock.sleep(0.01)
        await clock.sleep(1.0)
        assert claim() == "wait"
        lease = membership.lease
        member.store.leader.set()
        # The renewal that had to wait was sent too long ago; the next one says more.
        await clock.sleep(1)
        assert member.told == ["wait", "wait", None]
        assert membership.lease == lease
        assert claim() is None

    live(life)


def test_whoever_waits_is_refused_when_the_lease_has_ended() -> None:
    async def life(member: Member) -> None:
        await member.membership.join()
        await member.lose_lease()
        await member.clock.sleep(2)
        refusal, again = member.told
        assert isinstance(refusal, Unavailable), "before there is another lease"
        assert again is None

    live(life)


def test_a_lost_lease_is_replaced() -> None:
    async def life(member: Member) -> None:
        membership = member.membership
        await membership.join()
        await member.lose_lease()
        await member.clock.sleep(2)
        assert membership.guard() is None
        assert member.is_registered
        await membership.leave()
        assert membership.guard() is not None
        assert not member.is_registered

    live(life)


def test_a_renewal_under_way_makes_nobody_a_member_again() -> None:
    async def life(member: Member) -> None:
        membership, clock = member.membership, member.clock
        await membership.join()
        member.store.leader = asyncio.Event()
        await clock.sleep(0.8)  # The renewal waits for a leader.
        membership.resign()
        assert isinstance(membership.guard(), Unavailable)
        assert isinstance(member.told[-1], Unavailable), "whoever waits is refused at once"
        member.store.leader.set()
        await clock.sleep(0.01)
        assert not membership.is_certain
        await membership.leave()
        await clock.sleep(3)
        assert not member.is_registered

    live(life)


def test_a_new_lease_makes_nothing_certain_that_was_served_under_the_last_one() -> None:
    async def life(member: Member) -> None:
        membership = member.membership
        await membership.join()
        earlier = membership.claim()
        assert earlier() is None
        await member.lose_lease()
        await member.clock.sleep(2)
        assert membership.guard() is None, "it has another lease"
        assert earlier.is_over
        assert isinstance(earlier(), Unavailable)
        assert membership.claim()() is None

    live(life)


def test_what_was_refused_once_is_refused_for_ever() -> None:
    """Even if it turns out that the lease outlived the broker's patience."""

    async def life(member: Member) -> None:
        membership, clock = member.membership, member.clock
        await membership.join()
        claim = membership.claim()
        member.store.leader = asyncio.Event()
        while not claim.is_over:
            await clock.sleep(0.01)
        lease = membership.lease
        member.store.leader.set()
        while membership.guard() is not None:
            await clock.sleep(0.01)
        assert membership.lease == lease, "nobody has ended it"
        assert isinstance(claim(), Unavailable)

    live(life)


def test_a_lease_that_ended_before_the_registration_is_replaced() -> None:
    async def life(member: Member) -> None:
        member.store.short = 2
        await member.membership.join()
        assert member.membership.guard() is None
        assert member.is_registered

    live(life)


def test_a_broker_whose_leases_all_end_too_early_is_told_what_to_do() -> None:
    async def life(member: Member) -> None:
        member.store.short = 1_000
        with pytest.raises(Unavailable, match=r"cluster\.lease_ms"):
            await member.membership.join()
        assert member.membership.guard() is not None

    live(life)
