"""Over Flight, acks and cursors touch only what this topic and this subscription delivered."""

from collections.abc import Callable
from typing import Any

import pytest

from pydanube.client.client import connect
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from tests.support.flight_peer import Exchange, FlightPeer, call, payload_batch, refusal_of
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"
OLD, NEW = [b"old0", b"old1", b"old2"], [b"new0", b"new1", b"new2"]
ALL = (0, 3)

Peers = Callable[[], FlightPeer]


async def subscribe(peer: FlightPeer, **command: Any) -> Exchange:
    command = {"start_position": "earliest", "credit": 100, **command}
    return await call(peer.subscribe, TOPIC, "s", "c", **command)


async def receive(exchange: Exchange, expected: list[bytes]) -> str | None:
    """Take messages and return the mark they came with."""
    taken = await call(exchange.take, len(expected))
    assert [payload for rows in taken for payload in rows.payloads] == expected
    marks = {rows.mark for rows in taken}
    assert len(marks) == 1
    return marks.pop()


async def hold_old(peer: FlightPeer) -> str | None:
    await call(peer.publish, TOPIC, payload_batch(OLD))
    exchange = await subscribe(peer)
    mark = await receive(exchange, OLD)
    await call(exchange.leave)
    return mark


async def make_topic_anew(broker: RunningBroker, peer: FlightPeer) -> None:
    await broker.client().delete_topic(TOPIC)
    await call(peer.publish, TOPIC, payload_batch(NEW))


async def test_late_acks_settle_nothing_of_a_topic_made_anew(
    broker: RunningBroker, peer: FlightPeer, peers: Peers
) -> None:
    mark = await hold_old(peer)
    await make_topic_anew(broker, peer)
    exchange = await subscribe(peer)
    assert await receive(exchange, NEW) != mark
    await call(exchange.ack, ALL, mark=mark)
    await call(exchange.leave)
    exchange = await subscribe(peers())
    await receive(exchange, NEW)
    await call(exchange.leave)


async def test_late_acks_settle_nothing_after_a_restart(
    broker: RunningBroker, peer: FlightPeer
) -> None:
    mark = await hold_old(peer)
    await make_topic_anew(broker, peer)
    await call((await subscribe(peer)).leave)
    await broker.restart()
    again = FlightPeer(broker.server.client_port)
    exchange = await subscribe(again, credit=0)
    await call(exchange.ack, ALL)
    await call(exchange.ack, ALL, mark=mark)
    await call(exchange.say, credit=10)
    await receive(exchange, NEW)
    again.close()


async def test_late_nacks_count_for_nothing(broker: RunningBroker, peer: FlightPeer) -> None:
    mark = await hold_old(peer)
    await make_topic_anew(broker, peer)
    exchange = await subscribe(peer)
    current = await receive(exchange, NEW)
    await call(exchange.say, nack=[ALL], mark=mark)
    await call(exchange.ack, ALL, mark=current)
    await call(exchange.leave)
    exchange = await subscribe(peer)
    await call(peer.publish, TOPIC, payload_batch([b"next"]))
    await receive(exchange, [b"next"])
    await call(exchange.leave)


async def test_with_its_mark_a_batch_is_settled_on_another_stream_after_a_restart(
    broker: RunningBroker, peer: FlightPeer
) -> None:
    mark = await hold_old(peer)
    await broker.restart()
    again = FlightPeer(broker.server.client_port)
    exchange = await subscribe(again, credit=0)
    await call(exchange.ack, (0, 2), mark=mark)
    await call(exchange.say, credit=10)
    assert await receive(exchange, OLD[2:]) == mark
    again.close()


async def test_without_a_mark_a_stream_settles_what_it_was_sent_and_nothing_else(
    peer: FlightPeer, peers: Peers
) -> None:
    await hold_old(peer)
    one = await subscribe(peer, credit=1)
    await receive(one, OLD[:1])
    two = await call(peers().subscribe, TOPIC, "s", "d", credit=1)
    await receive(two, OLD[1:2])
    await call(two.ack, (0, 2))
    await call(one.leave)
    await call(two.say, credit=10)
    payloads = await call(two.payloads, 2)
    assert sorted(payloads) == [b"old0", b"old2"], "only old1 was its own"
    await call(two.leave)


async def test_after_a_seek_acks_of_before_count_no_more(peer: FlightPeer) -> None:
    await call(peer.publish, TOPIC, payload_batch(OLD))
    exchange = await subscribe(peer)
    mark = await receive(exchange, OLD)
    await call(peer.act, "seek", topic=TOPIC, subscription="s", position="earliest")
    assert await receive(exchange, OLD) != mark
    await call(exchange.ack, ALL, mark=mark)
    await call(exchange.leave)
    exchange = await subscribe(peer)
    await receive(exchange, OLD)
    await call(exchange.leave)


async def act(peer: FlightPeer, action: str, **body: Any) -> dict[str, Any]:
    return await call(peer.act, action, topic=TOPIC, subscription="job", **body)


class TestCursors:
    @pytest.mark.parametrize("anew", ["topic", "cursor"])
    async def test_a_cursor_made_anew_is_not_advanced_by_whoever_means_the_old_one(
        self, broker: RunningBroker, peer: FlightPeer, anew: str
    ) -> None:
        await call(peer.publish, TOPIC, payload_batch(OLD))
        marks = {TOPIC: (await act(peer, "cursor.create", position="earliest"))["mark"]}
        assert (await act(peer, "cursor.advance", position=1, marks=marks))["position"] == 1
        if anew == "topic":
            await make_topic_anew(broker, peer)
        if anew == "cursor":
            request = admin.SubscriptionRequest(topic=TOPIC, subscription="job")
            await broker.client().call(services.UNSUBSCRIBE, request)
        await act(peer, "cursor.create", position="earliest")
        body = {"topic": TOPIC, "subscription": "job", "position": 3, "marks": marks}
        refused = await call(refusal_of, peer.act, "cursor.advance", **body)
        assert "was dropped and made again" in refused
        standing = await act(peer, "cursor.get")
        assert standing["position"] == 0
        marks = {TOPIC: standing["mark"]}
        assert (await act(peer, "cursor.advance", position=3, marks=marks))["position"] == 3

    async def test_a_cursor_that_was_moved_is_the_same_one(self, peer: FlightPeer) -> None:
        """An operator may move it while a job goes on mirroring its progress there."""
        await call(peer.publish, TOPIC, payload_batch(OLD))
        marks = {TOPIC: (await act(peer, "cursor.create", position="latest"))["mark"]}
        await act(peer, "seek", position="earliest")
        assert (await act(peer, "cursor.advance", position=2, marks=marks))["position"] == 2

    async def test_a_mark_is_known_after_a_restart(
        self, broker: RunningBroker, peer: FlightPeer
    ) -> None:
        await call(peer.publish, TOPIC, payload_batch(OLD))
        marks = {TOPIC: (await act(peer, "cursor.create", position="earliest"))["mark"]}
        await broker.restart()
        again = FlightPeer(broker.server.client_port)
        assert (await act(again, "cursor.advance", position=2, marks=marks))["position"] == 2
        again.close()


async def test_our_client_settles_batches_of_earlier_topics_and_nothing_is_lost(
    broker: RunningBroker,
) -> None:
    url = f"http://127.0.0.1:{broker.server.client_port}"
    async with connect(url) as client:
        async with client.producer(TOPIC) as producer:
            for payload in OLD:
                await producer.send(payload)
        async with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
            batches = consumer.batches()
            old = await anext(batches)
            await make_anew_by(client, broker)
            new = await anext(batches)
            while new.mark == old.mark:
                new = await anext(batches)
            assert new.payloads()[0] == NEW[0]
            await consumer.ack_batch(old)
        async with client.consumer(TOPIC, "s") as consumer:
            again = await consumer.receive(seconds_max=10)
            assert again.payload == NEW[0]


async def make_anew_by(client: Any, broker: RunningBroker) -> None:
    raw = broker.client()
    await raw.delete_topic(TOPIC)
    await raw.create_topic(TOPIC)
    await raw.subscribe(TOPIC, start_position="earliest", name="keeper", kind=1)
    async with client.producer(TOPIC) as producer:
        for payload in NEW:
            await producer.send(payload)
