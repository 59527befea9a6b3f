"""Load that is uneven becomes even, by moves with a reason each."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pydanube.balance.history import decode_move
from pydanube.metadata import keys
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from tests.support.broker_cluster import BrokerCluster

TOPIC = "/default/orders"
EAGER = {
    "load_manager.assignment_strategy": "fair",
    "load_manager.load_report_interval_seconds": 1,
    "load_manager.rebalancing.enabled": True,
    "load_manager.rebalancing.aggressiveness": "aggressive",
    "load_manager.rebalancing.check_interval_seconds": 1,
    "load_manager.rebalancing.max_moves_per_hour": 1000,
    "load_manager.rebalancing.max_moves_per_cycle": 20,
    "load_manager.rebalancing.cooldown_seconds": 0,
    "load_manager.rebalancing.min_topic_age_seconds": 0,
}


@pytest.fixture
async def eager(tmp_path: Path, etcd_url: str | None) -> AsyncIterator[BrokerCluster]:
    cluster = BrokerCluster(tmp_path, 3, EAGER, etcd_url=etcd_url)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.close()


async def gather_on_one(cluster: BrokerCluster, count: int) -> None:
    """Have all topics on the first broker: the others are drained while they are created."""
    client = cluster.client(cluster.brokers[0])
    for broker in cluster.brokers[1:]:
        request = admin.UnloadBrokerRequest(broker_id=str(broker.id))
        await client.call(services.UNLOAD_BROKER, request)
    for number in range(count):
        await client.create_topic(f"{TOPIC}-{number}", reliable=number % 2 == 0)
    await cluster.until(lambda: len(cluster.brokers[0].topics) == count)
    for broker in cluster.brokers[1:]:
        activated = admin.ActivateBrokerRequest(broker_id=str(broker.id))
        await client.call(services.ACTIVATE_BROKER, activated)


async def test_topics_move_until_every_broker_has_its_share(eager: BrokerCluster) -> None:
    await gather_on_one(eager, 18)
    await eager.until(lambda: max(len(each.topics) for each in eager.brokers) <= 7)
    client = eager.client(eager.brokers[2])
    balance = await client.call(services.GET_CLUSTER_BALANCE, admin.ClusterBalanceRequest())
    assert balance.coefficient_of_variation < 0.2
    assert balance.assignment_strategy == "Fair"
    recorded = [
        decode_move(entry.value) for entry in eager.brokers[0].store.list(keys.REBALANCING_HISTORY)
    ]
    done = [record for record in recorded if record.outcome == "done"]
    assert len(done) >= 6
    assert all(record.reason for record in done)
    reading = (await eager.leading()).clustering.reading()
    assert reading.moves >= 6
    assert reading.cycle_seconds is not None
    assert reading.cycle_seconds.total > 0


async def test_a_dry_run_moves_nothing_and_a_real_one_what_it_said(
    tmp_path: Path, etcd_url: str | None
) -> None:
    settings = {**EAGER, "load_manager.rebalancing.enabled": False}
    cluster = BrokerCluster(tmp_path, 3, settings, etcd_url=etcd_url)
    try:
        await cluster.start()
        await gather_on_one(cluster, 9)
        client = cluster.client(cluster.brokers[1])
        first = await planned(cluster)
        assert first.reason
        assert len(cluster.brokers[0].topics) == 9
        asked = admin.RebalanceRequest(max_moves=2)
        moved = await client.call(services.TRIGGER_REBALANCE, asked)
        assert moved.moves_executed == 2
        assert moved.proposed_moves[0].topic_name == first.topic_name
        await cluster.until(lambda: sum(len(each.topics) for each in cluster.brokers) == 9)
        assert len(cluster.brokers[0].topics) == 7
    finally:
        await cluster.close()


async def planned(cluster: BrokerCluster) -> admin.ProposedMove:
    """Return the first move that a dry run proposes, once the topics are in a report."""
    client = cluster.client(cluster.brokers[2])
    async with asyncio.timeout(30):
        while True:
            request = admin.RebalanceRequest(dry_run=True)
            dry = await client.call(services.TRIGGER_REBALANCE, request)
            assert dry.success, dry.error_message
            if dry.proposed_moves:
                assert dry.moves_executed == 0
                return dry.proposed_moves[0]
            await asyncio.sleep(0.1)
