"""Consumers that come back to a broker which their topic has left are served all the same."""

import pytest

from pydanube import connect
from pydanube.broker.forwarding import FORWARDED
from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.support.broker_cluster import BrokerCluster, ClusterBroker
from tests.support.raw_client import RawClient

TOPIC = "/default/relayed"


async def publish(cluster: BrokerCluster, *payloads: bytes) -> None:
    urls = ",".join(broker.url for broker in cluster.brokers)
    async with connect(urls) as client, client.producer(TOPIC) as producer:
        for payload in payloads:
            await producer.send(payload)


async def leave(cluster: BrokerCluster) -> tuple[ClusterBroker, RawClient, int]:
    """Subscribe, and have the topic moved: return who served it, a client of it, the consumer."""
    await publish(cluster, b"before")
    former = await cluster.owned(TOPIC)
    client = cluster.client(former)
    consumer = await client.subscribe(TOPIC, start_position="earliest")
    await cluster.move(TOPIC, next(each for each in cluster.brokers if each is not former))
    owner = await cluster.owned(TOPIC)
    await cluster.until(lambda: former.clustering.directory.owner_of(TOPIC) == owner.id)
    return former, client, consumer


async def test_a_consumer_receives_and_acks_at_the_broker_its_topic_has_left(
    cluster: BrokerCluster,
) -> None:
    _, client, consumer = await leave(cluster)
    stream = client.open(consumer)
    first = await stream.next()
    await client.ack(first)
    await publish(cluster, b"after", b"again")
    second, third = await stream.next(), await stream.next()
    assert [each.payload for each in (first, second, third)] == [b"before", b"after", b"again"]
    await client.ack(second)
    await client.nack(third)
    assert (await stream.next()).payload == b"again"
    await stream.close()
    direct = await cluster.client(await cluster.owned(TOPIC)).consume(TOPIC)
    assert (await direct.next()).payload == b"again", "what was acked by way of it is settled"


async def test_a_relayed_consumer_is_served_here_when_its_topic_comes_back(
    cluster: BrokerCluster,
) -> None:
    former, client, consumer = await leave(cluster)
    stream = client.open(consumer)
    await client.ack(await stream.next())
    await cluster.move(TOPIC, former)
    await publish(cluster, b"home")
    assert (await client.open(consumer).next()).payload == b"home"


async def test_a_nack_of_what_the_owner_has_not_delivered_is_refused(
    cluster: BrokerCluster,
) -> None:
    """The owner would not count it, and the client would take it for counted."""
    _, client, _ = await leave(cluster)
    place = api.MsgID(topic_name=TOPIC, topic_offset=0)
    nack = api.NackRequest(msg_id=place, subscription_name="s")
    assert await client.status(services.NACK, nack) == StatusCode.UNAVAILABLE
    ack = api.AckRequest(msg_id=place, subscription_name="s")
    assert await client.status(services.ACK, ack) == StatusCode.OK


async def test_what_was_relayed_goes_no_further(cluster: BrokerCluster) -> None:
    """Two brokers that each believe the other serves a topic do not pass calls to and fro."""
    _, client, consumer = await leave(cluster)
    place = api.MsgID(topic_name=TOPIC, topic_offset=0)
    ack = api.AckRequest(msg_id=place, subscription_name="s").SerializeToString()
    with pytest.raises(CallRefused) as refused:
        await client.channel.unary(
            services.ACK.path, ack, metadata={FORWARDED: "1"}, timeout_seconds=10
        )
    assert refused.value.code == StatusCode.UNAVAILABLE
    request = api.ReceiveRequest(consumer_id=consumer).SerializeToString()
    with pytest.raises(CallRefused):
        async for _ in client.channel.stream(
            services.RECEIVE_MESSAGES.path, request, metadata={FORWARDED: "1"}
        ):
            pass


async def test_what_is_nowhere_is_refused_as_on_a_single_broker(cluster: BrokerCluster) -> None:
    _, client, consumer = await leave(cluster)
    with pytest.raises(AssertionError, match="ended: 5"):
        await client.open(consumer + 1).next()
    for nowhere in ("/default/never", "no name", ""):
        place = api.MsgID(topic_name=nowhere, topic_offset=0)
        ack = api.AckRequest(msg_id=place, subscription_name="s")
        assert await client.status(services.ACK, ack) == StatusCode.INTERNAL
