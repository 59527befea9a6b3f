"""When a broker may still rely on its lease."""

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
        assert membership.guard() is not None, "nothing is acknowledged before it has joined"
        await membership.join()
        await clock.sleep(10)
        assert membership.guard() is None
        await tasks.close()  # It renews no more, as a process that stands still.
        told: list[str] = []
        membership.on_change = lambda: told.append("lost")
        while membership.guard() is None:
            assert store.get(keys.registration(ME)) is not None
            await clock.sleep(0.01)
        assert store.get(keys.registration(ME)) is not None, "its lease outlasts its own trust"
        assert told == ["lost"]
        await clock.sleep(2)
        assert store.get(keys.registration(ME)) is None

    run_simulated(life, "membership", seconds_max=100, steps_max=100_000)


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
