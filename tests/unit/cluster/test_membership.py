"""When a broker may still rely on its lease."""

import asyncio

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


def test_a_broker_stops_before_others_may_begin() -> None:
    async def life(_: Randomness) -> None:
        clock = SimulatedClock()
        store = MemoryMetadataStore(clock)
        tasks = TaskScope(lambda name, error: None)
        membership = Membership(store, clock, tasks, ME, RECORD, TERMS)
        assert isinstance(membership.guard(), Unavailable), "not before it has joined"
        await membership.join()
        await clock.sleep(10)
        assert membership.guard() is None
        await tasks.close()  # It renews no more, as a process that stands still.
        told: list[object] = []
        membership.tells(lambda: told.append(membership.guard()))
        while membership.guard() is None:
            assert store.get(keys.registration(ME)) is not None
            await clock.sleep(0.01)
        assert membership.guard() == "wait", "a renewal may still be on its way"
        assert store.get(keys.registration(ME)) is not None, "its lease outlasts its own trust"
        await clock.sleep(0.01)
        assert told == ["wait"]
        await clock.sleep(3)
        assert store.get(keys.registration(ME)) is None
        assert isinstance(membership.guard(), Unavailable)
        assert len(told) == 2
        assert isinstance(told[1], Unavailable), "whoever waits is told that it was in vain"

    run_simulated(life, "membership", seconds_max=100, steps_max=100_000)


class _SlowStore(MemoryMetadataStore):
    """Lets renewals wait, as a cluster does that elects a leader, and lets no lease end then."""

    leader: asyncio.Event | None = None

    @override
    async def renew_lease(self, lease: int) -> None:
        if self.leader is not None:
            await self.leader.wait()
        await super().renew_lease(lease)

    @override
    def _propose_expiry(self, now_ms: int) -> None:
        if self.leader is None or self.leader.is_set():
            super()._propose_expiry(now_ms)


def test_what_waits_for_a_renewal_is_told_when_it_has_succeeded() -> None:
    async def life(_: Randomness) -> None:
        clock = SimulatedClock()
        store = _SlowStore(clock)
        tasks = TaskScope(lambda name, error: None)
        membership = Membership(store, clock, tasks, ME, RECORD, TERMS)
        await membership.join()
        told: list[object] = []
        membership.tells(lambda: told.append(membership.guard()))
        store.leader = asyncio.Event()
        while membership.guard() is None:
            await clock.sleep(0.01)
        await clock.sleep(1.0)
        lease = membership.lease
        store.leader.set()
        # The renewal that had to wait was sent too long ago; the next one says more.
        await clock.sleep(1)
        assert told == ["wait", "wait", None]
        assert membership.lease == lease
        await tasks.close()

    run_simulated(life, "renewal", seconds_max=100, steps_max=100_000)


def test_whoever_waits_is_refused_when_the_lease_has_ended() -> None:
    async def life(_: Randomness) -> None:
        clock = SimulatedClock()
        store = MemoryMetadataStore(clock)
        tasks = TaskScope(lambda name, error: None)
        membership = Membership(store, clock, tasks, ME, RECORD, TERMS)
        await membership.join()
        told: list[object] = []
        membership.tells(lambda: told.append(membership.guard()))
        assert membership.lease is not None
        await store.revoke_lease(membership.lease)
        await clock.sleep(2)
        refusal, again = told
        assert isinstance(refusal, Unavailable), "before there is another lease"
        assert again is None
        await tasks.close()

    run_simulated(life, "ended lease", seconds_max=100, steps_max=100_000)


def test_a_lost_lease_is_replaced() -> None:
    async def life(_: Randomness) -> None:
        clock = SimulatedClock()
        store = MemoryMetadataStore(clock)
        tasks = TaskScope(lambda name, error: None)
        membership = Membership(store, clock, tasks, ME, RECORD, TERMS)
        await membership.join()
        assert membership.lease is not None
        await store.revoke_lease(membership.lease)
        await clock.sleep(2)
        assert membership.guard() is None
        assert store.get(keys.registration(ME)) is not None
        await membership.leave()
        assert membership.guard() is not None
        assert store.get(keys.registration(ME)) is None
        await tasks.close()

    run_simulated(life, "lost lease", seconds_max=100, steps_max=100_000)


class _ForgetfulStore(MemoryMetadataStore):
    """Lets leases end at once, as far as the first ones are concerned."""

    short = 0

    @override
    async def grant_lease(self, ttl_ms: int) -> int:
        lease = await super().grant_lease(ttl_ms)
        if self.short:
            self.short -= 1
            await self.revoke_lease(lease)
        return lease


def test_a_lease_that_ended_before_the_registration_is_replaced() -> None:
    async def life(_: Randomness) -> None:
        clock = SimulatedClock()
        store = _ForgetfulStore(clock)
        store.short = 2
        tasks = TaskScope(lambda name, error: None)
        membership = Membership(store, clock, tasks, ME, RECORD, TERMS)
        await membership.join()
        assert membership.guard() is None
        assert store.get(keys.registration(ME)) is not None
        await tasks.close()

    run_simulated(life, "short lease", seconds_max=100, steps_max=100_000)


def test_a_broker_whose_leases_all_end_too_early_is_told_what_to_do() -> None:
    async def life(_: Randomness) -> None:
        clock = SimulatedClock()
        store = _ForgetfulStore(clock)
        store.short = 1_000
        membership = Membership(store, clock, TaskScope(print), ME, RECORD, TERMS)
        with pytest.raises(Unavailable, match=r"cluster\.lease_ms"):
            await membership.join()
        assert membership.guard() is not None

    run_simulated(life, "short leases", seconds_max=100, steps_max=100_000)
