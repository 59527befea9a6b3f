"""Brokers that vanish: their topics are served by others, with everything acknowledged."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pydanube import connect
from pydanube.errors import Unavailable
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from tests.support.broker_cluster import BrokerCluster
from tests.support.broker_process import free_ports, operator_page

TOPIC = "/default/orders"


async def test_an_owner_that_vanishes_is_followed_by_a_mirror(cluster: BrokerCluster) -> None:
    async with connect(cluster.brokers[0].url) as client, client.producer(TOPIC) as producer:
        for number in range(20):
            await producer.send(b"%d" % number)
        async with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
            for number in range(12):
                message = await anext(aiter(consumer))
                assert message.payload == b"%d" % number
                await consumer.ack(message)
    owner = await cluster.owned(TOPIC)
    await owner.vanish()
    heir = await cluster.owned(TOPIC)
    async with connect(heir.url) as client:
        async with client.producer(TOPIC) as producer:
            assert (await producer.send(b"20")).offset == 20
        table = await client.reader(TOPIC).to_arrow()
        assert table["payload"].to_pylist() == [b"%d" % number for number in range(21)]
        async with client.consumer(TOPIC, "s") as consumer:
            received = [await anext(aiter(consumer)) for _ in range(9)]
        assert [int(message.payload) for message in received] == list(range(12, 21))


async def test_an_owner_that_comes_back_at_once_goes_on(cluster: BrokerCluster) -> None:
    async with connect(cluster.brokers[0].url) as client, client.producer(TOPIC) as producer:
        for number in range(5):
            await producer.send(b"%d" % number)
    owner = await cluster.owned(TOPIC)
    await owner.vanish()
    await owner.start()
    await cluster.owned(TOPIC)
    async with connect(owner.url) as client, client.producer(TOPIC) as producer:
        assert (await producer.send(b"5")).offset == 5


@pytest.mark.parametrize("step", ["put", "grant_lease", "transact"])
async def test_a_broker_whose_leader_dies_while_it_joins_waits_for_the_next(
    cluster: BrokerCluster, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, others = cluster.brokers[2], [each.store for each in cluster.brokers[:2]]
    kind, failures = type(broker.store), iter(range(2))
    work = getattr(kind, step)
    [port] = free_ports(1)
    broker.settings["broker.ports.prometheus"] = port
    seen: list[int] = []

    async def unanswered(store: Any, *details: Any) -> Any:
        if store not in others and next(failures, None) is not None:
            seen.append((await asyncio.to_thread(operator_page, port, "/readyz"))[0])
            raise Unavailable("the leader did not answer")
        return await work(store, *details)

    await broker.stop()
    monkeypatch.setattr(kind, step, unanswered)
    await broker.start()
    assert seen == [503, 503], "it was not ready before it had joined"
    assert (await asyncio.to_thread(operator_page, port, "/readyz"))[0] == 200
    view = cluster.brokers[0].clustering.directory
    await cluster.until(lambda: broker.id in view.view.active())


async def test_a_broker_whose_renewal_is_late_answers_when_it_has_succeeded(tmp_path: Path) -> None:
    """While the metadata elect a leader nobody can renew, and nobody is given anything."""
    cluster = BrokerCluster(tmp_path, 3, {"cluster.lease_ms": 6_000})
    try:
        await cluster.start()
        async with connect(cluster.brokers[0].url) as client, client.producer(TOPIC) as producer:
            await producer.send(b"in time")
            owner = await cluster.owned(TOPIC)
            topic, membership = owner.topics.find(TOPIC), owner.clustering.membership
            assert membership._renewed_ms is not None
            membership._renewed_ms -= membership.terms.trusted_ms
            assert membership.guard() == "wait"
            sent = await producer.send(b"in doubt")
            assert sent.offset == 1
            assert membership.guard() is None
            assert owner.topics.find(TOPIC) is topic, "it was served all the time"
    finally:
        await cluster.close()


async def test_what_waits_for_a_lease_that_has_ended_is_answered_by_the_next_owner(
    tmp_path: Path,
) -> None:
    cluster = BrokerCluster(tmp_path, 3, {"cluster.lease_ms": 6_000})
    try:
        await cluster.start()
        urls = ",".join(broker.url for broker in cluster.brokers)
        async with connect(urls) as client, client.producer(TOPIC) as producer:
            await producer.send(b"in time")
            owner = await cluster.owned(TOPIC)
            topic, membership = owner.topics.find(TOPIC), owner.clustering.membership
            assert topic is not None
            log = topic.log
            assert log is not None
            assert membership._renewed_ms is not None
            membership._renewed_ms -= membership.terms.trusted_ms
            sending = asyncio.create_task(producer.send(b"in doubt"))
            await cluster.until(lambda: log._held_bytes is not None)
            await owner.store.revoke_lease(membership.lease)
            assert (await sending).offset == 1
            assert log.durable_end == 1, "the former owner has answered nothing more"
            table = await client.reader(TOPIC).to_arrow()
            assert table["payload"].to_pylist() == [b"in time", b"in doubt"]
    finally:
        await cluster.close()


async def test_policies_of_a_namespace_reach_every_broker(cluster: BrokerCluster) -> None:
    admin = cluster.client(cluster.brokers[0])
    for number in range(3):
        await admin.create_topic(f"{TOPIC}-{number}")
    await cluster.until(lambda: sum(len(each.topics) for each in cluster.brokers) == 3)
    request = own.SetMessageTtlRequest(namespace="default", ttl_ms=4321)
    await admin.call(services.SET_MESSAGE_TTL, request)

    def known() -> list[int | None]:
        return [topic.message_ttl_ms() for each in cluster.brokers for topic in each.topics]

    await cluster.until(lambda: known() == [4321] * 3)
    assert known() == [4321] * 3
