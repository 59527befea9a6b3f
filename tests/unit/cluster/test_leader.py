"""The leader acts with its own key in hand, or not at all."""

from types import SimpleNamespace
from typing import Any

from pydanube.cluster.leader import Leader
from pydanube.cluster.planning import Step
from pydanube.metadata.memory_store import MemoryMetadataStore
from pydanube.metadata.store import Put
from pydanube.model.ids import BrokerId
from pydanube.runtime.clock import SystemClock

STATE = "/cluster/brokers/7/state"
DRAINED = Step(
    topic=None,
    conditions=(),
    operations=(Put(STATE, b"drained"),),
    broker=BrokerId(7),
    reason="drain_complete",
)


async def _leading(store: MemoryMetadataStore, broker: int) -> Leader:
    """Return a leader without topics that has begun to lead."""
    given: Any = SimpleNamespace(
        broker=BrokerId(broker),
        lease=None,
        is_leader=True,
        is_certain=True,
        read=lambda: SimpleNamespace(brokers={}, states={}, owners={}, markers={}),
        topics_at=lambda: [],
    )
    leader = Leader(
        store=store,
        directory=given,
        membership=given,
        leadership=given,
        catalog=given,
        clock=SystemClock(),
        chooser=lambda: lambda topic, brokers: brokers[0],
        moves_reliable=True,
    )
    await leader._look()
    return leader


async def test_a_leader_whom_another_one_has_followed_changes_nothing() -> None:
    store = MemoryMetadataStore(SystemClock())
    first = await _leading(store, 1)
    second = await _leading(store, 2)
    assert not await first.carry_out(DRAINED)
    assert store.get(STATE) is None
    assert await second.carry_out(DRAINED)
    assert store.get(STATE) is not None
    await store.close()
