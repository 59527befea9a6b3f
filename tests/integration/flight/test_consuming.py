"""DoExchange: a consumer of a subscription, fed as its credit allows."""

import asyncio
import time

import pyarrow as pa
import pytest

from pydanube.subscriptions.subscription import HOLDER_GRACE_MS
from tests.support.flight_peer import Exchange, FlightPeer, call, payload_batch, refusal_of

TOPIC = "/default/orders"
TYPES = ["exclusive", "shared", "failover", "key_shared"]


def numbers(*bounds: int) -> list[bytes]:
    return [b"%d" % number for number in range(*bounds)]


def keyed(*bounds: int) -> pa.RecordBatch:
    """Messages with a key each, so that key-shared subscriptions need not wait for acks."""
    payloads = numbers(*bounds)
    keys = pa.array([payload.decode() for payload in payloads], pa.utf8())
    return payload_batch(payloads, routing_key=keys)


@pytest.fixture
async def topic(peer: FlightPeer) -> str:
    """A topic of ten messages in two batches."""
    await call(peer.publish, TOPIC, keyed(4), keyed(4, 10))
    return TOPIC


async def subscribe(peer: FlightPeer, consumer: str = "c", **command: object) -> Exchange:
    command.setdefault("start_position", "earliest")
    return await call(peer.subscribe, TOPIC, "s", consumer, **command)


@pytest.mark.parametrize("kind", TYPES)
class TestEveryType:
    async def test_messages_come_as_far_as_the_credit_goes(self, peer, topic, kind):
        consumer = await subscribe(peer, type=kind, credit=3)
        assert sorted(await call(consumer.payloads, 3)) == numbers(3)
        await call(consumer.say, credit=4)
        assert sorted(await call(consumer.payloads, 4)) == numbers(3, 7)
        await call(consumer.say, credit=100)
        assert sorted(await call(consumer.payloads, 3)) == numbers(7, 10)
        await call(consumer.leave)

    async def test_acks_survive_a_restart(self, peer, broker, topic, kind):
        consumer = await subscribe(peer, type=kind, credit=100)
        assert sorted(await call(consumer.payloads, 10)) == numbers(10)
        await call(consumer.ack, (0, 3), (5, 6))
        await broker.restart()
        again = FlightPeer(broker.server.client_port)
        consumer = await subscribe(again, type=kind, credit=100)
        assert sorted(await call(consumer.payloads, 6)) == [b"3", b"4", *numbers(6, 10)]
        again.close()

    async def test_what_was_nacked_comes_again_as_another_attempt(self, peer, broker, topic, kind):
        await broker.client().set_failure_policy(TOPIC, base_redelivery_delay_ms=0)
        consumer = await subscribe(peer, type=kind, credit=100)
        assert {rows.attempt for rows in await call(consumer.take, 10)} == {1}
        await call(consumer.ack, (0, 4), (6, 10), nack=[(4, 6)], reason="try again")
        again = await call(consumer.take, 2)
        assert sorted(payload for rows in again for payload in rows.payloads) == [b"4", b"5"]
        assert {rows.attempt for rows in again} == {2}
        await call(consumer.leave)

    async def test_what_a_consumer_has_not_acked_comes_again_when_it_is_back(
        self, peer, topic, kind
    ):
        consumer = await subscribe(peer, type=kind, credit=100)
        await call(consumer.payloads, 10)
        await call(consumer.ack, (0, 8))
        await call(consumer.leave)
        consumer = await subscribe(peer, type=kind, credit=100)
        rows = await call(consumer.take, 2)
        assert sorted(payload for each in rows for payload in each.payloads) == [b"8", b"9"]
        assert {each.attempt for each in rows} == {2}
        await call(consumer.leave)

    async def test_new_messages_come_as_they_are_published(self, peers, peer, topic, kind):
        consumer = await subscribe(peer, type=kind, credit=100, start_position="latest")
        await call(consumer.wait_heard)
        await call(peers().publish, TOPIC, keyed(10, 20))
        assert sorted(await call(consumer.payloads, 10)) == numbers(10, 20)
        await call(consumer.leave)

    async def test_best_effort_messages_come_without_offsets_while_there_is_credit(
        self, peers, peer, kind
    ):
        other = peers()
        await call(other.publish, TOPIC, keyed(1), dispatch="non_reliable")
        consumer = await subscribe(peer, type=kind, credit=5)
        await call(consumer.wait_heard)
        await call(other.publish, TOPIC, keyed(20, 28))
        rows = await call(consumer.take, 5)
        assert sorted(payload for each in rows for payload in each.payloads) == numbers(20, 25)
        assert {each.offset for each in rows} == {None}
        await call(consumer.say, credit=100)
        await call(consumer.wait_heard)
        await call(other.publish, TOPIC, keyed(30, 33))
        assert sorted(await call(consumer.payloads, 3)) == numbers(30, 33)
        await call(consumer.leave)


class TestOrderAndBatches:
    async def test_whole_batches_stay_whole_and_parts_are_cut(self, peer, topic):
        consumer = await subscribe(peer, credit=100)
        assert [rows.offsets for rows in await call(consumer.take, 10)] == [
            list(range(4)),
            list(range(4, 10)),
        ]
        await call(consumer.leave)
        consumer = await call(
            peer.subscribe, TOPIC, "other", "c", credit=6, start_position="offset:2"
        )
        assert [rows.offsets for rows in await call(consumer.take, 6)] == [[2, 3], [4, 5, 6, 7]]
        await call(consumer.leave)

    async def test_more_than_the_usual_window_is_in_flight(self, peer):
        await call(peer.publish, TOPIC, *[keyed(low, low + 500) for low in range(0, 5_000, 500)])
        consumer = await subscribe(peer, credit=5_000)
        assert await call(consumer.payloads, 5_000) == numbers(5_000)
        await call(consumer.leave)

    async def test_a_window_an_operator_has_set_stands(self, peer, broker, topic):
        await broker.client().set_window(TOPIC, 3)
        consumer = await subscribe(peer, credit=100)
        assert await call(consumer.payloads, 3) == numbers(3)
        await call(consumer.say, ack_until=2)
        assert await call(consumer.payloads, 2) == numbers(3, 5)
        await call(consumer.leave)

    async def test_a_window_may_be_asked_for(self, peer, topic):
        consumer = await subscribe(peer, credit=100, window=11)
        await call(peer.publish, TOPIC, keyed(10, 20))
        assert await call(consumer.payloads, 11) == numbers(11)
        await call(consumer.leave)

    async def test_two_consumers_share_and_get_every_message_once(self, peers, peer, topic):
        others = peers()
        first = await subscribe(peer, "one", credit=4)
        second = await subscribe(others, "two", credit=100)
        offsets = await call(first.offsets, 4) + await call(second.offsets, 6)
        assert sorted(offsets) == list(range(10))
        await call(first.leave)
        assert sorted(await call(second.offsets, 4)) == sorted(offsets[:4])
        await call(second.leave)

    async def test_key_filters_choose_the_messages(self, peers, peer):
        first = await subscribe_to_created(peers(), "one", key_filters=["a*"])
        second = await subscribe_to_created(peer, "two", key_filters=["b"])
        keys = pa.array(["a1", "b", "a2", "b", "a1"])
        await call(peers().publish, TOPIC, payload_batch(numbers(5), routing_key=keys))

        def drain(consumer: Exchange, count: int) -> list[bytes]:
            found: list[bytes] = []
            while len(found) < count:
                rows = consumer.next()
                found += rows.payloads
                consumer.say(ack=[(rows.offsets[0], rows.offsets[-1] + 1)])
            return found

        assert sorted(await call(drain, second, 2)) == [b"1", b"3"]
        assert sorted(await call(drain, first, 3)) == [b"0", b"2", b"4"]
        await call(first.leave)
        await call(second.leave)


async def subscribe_to_created(peer: FlightPeer, consumer: str, **command: object) -> Exchange:
    await call(peer.publish, TOPIC, payload_batch([]))
    return await subscribe(peer, consumer, type="key_shared", credit=100, **command)


class TestAcks:
    async def test_a_cumulative_ack_settles_what_this_stream_was_sent_and_nothing_else(
        self, peers, peer, topic
    ):
        first = await subscribe(peer, "one", credit=4)
        second = await subscribe(peers(), "two", credit=6)
        mine, others = await call(first.offsets, 4), await call(second.offsets, 6)
        await call(first.ack, ack_until=10)
        await call(second.leave)
        await call(first.say, credit=100)
        assert sorted(await call(first.offsets, 6)) == sorted(others)
        cursor = await call(peer.act, "cursor.get", topic=TOPIC, subscription="s")
        assert cursor["position"] == min(set(range(10)) - set(mine))
        await call(first.leave)

    async def test_an_ack_that_was_answered_is_durable_and_moves_the_cursor(self, peer, topic):
        consumer = await subscribe(peer, credit=100)
        await call(consumer.take, 10)
        await call(consumer.ack, (0, 4))
        cursor = await call(peer.act, "cursor.get", topic=TOPIC, subscription="s")
        assert (cursor["position"], cursor["frontier"]) == (4, 10)
        await call(consumer.ack, (4, 10))
        await call(consumer.leave)

    async def test_acks_said_before_leaving_are_kept(self, peer, topic):
        consumer = await subscribe(peer, credit=100)
        await call(consumer.take, 10)
        await call(consumer.say, ack=[(0, 10)])
        await call(consumer.leave)
        cursor = await call(peer.act, "cursor.get", topic=TOPIC, subscription="s")
        assert cursor["position"] == 10

    async def test_acks_of_either_api_count(self, peer, broker, topic):
        client = broker.client()
        stream = await client.consume(TOPIC, kind=1, start_position="earliest")
        await client.ack_all(await stream.take(10))
        await client.drop(stream)
        consumer = await subscribe(peer, credit=100)
        await call(peer.publish, TOPIC, keyed(10, 12))
        assert await call(consumer.payloads, 2) == numbers(10, 12)
        await call(consumer.leave)


class TestRefusals:
    @pytest.mark.parametrize(
        ("command", "reason"),
        [
            ({"topic": "/default/nowhere"}, "does not exist"),
            ({"subscription": ""}, "subscription name must be"),
            ({"consumer": "\n"}, "consumer name must be"),
            ({"type": "private"}, "type"),
            ({"start_position": "middle"}, "start position 'middle'"),
            ({"credit": -1}, "credit"),
            ({"credit": 10**9}, "credit"),
            ({"window": 0}, "window"),
            ({"key_filters": ["x"] * 101}, "100 key filters"),
            ({"filter": "x"}, "filter"),
        ],
    )
    async def test_a_subscription_that_makes_no_sense_is_refused(
        self, peer, topic, command, reason
    ):
        given = {"topic": TOPIC, "subscription": "s", "consumer": "c", **command}
        consumer = await call(Exchange, peer, given)
        assert reason in await call(consumer.end)

    @pytest.mark.parametrize(
        ("words", "reason"),
        [
            (b"ack 5", "JSON object"),
            (b'{"ack": [[5, 5]]}', "is no range"),
            (b'{"ack": [[5, 4]]}', "is no range"),
            (b'{"nack": [[5]]}', "nack"),
            (b'{"ack": [[-1, 4]]}', "ack"),
            (b'{"ack": [[0, 99999999999999999999]]}', "ack"),
            (b'{"credit": -5}', "credit"),
            (b'{"ok": true}', "ok"),
            (b"\xff", "JSON object"),
        ],
    )
    async def test_words_that_make_no_sense_end_the_stream_and_settle_nothing(
        self, peer, topic, words, reason
    ):
        consumer = await subscribe(peer, credit=100)
        await call(consumer.take, 10)
        await call(consumer.writer.write_metadata, words)
        assert reason in await call(consumer.end)
        cursor = await call(peer.act, "cursor.get", topic=TOPIC, subscription="s")
        assert cursor["position"] == 0

    async def test_rows_are_not_published_through_a_consumer(self, peer, topic):
        consumer = await subscribe(peer)

        def send_rows() -> str | None:
            consumer.writer.begin(keyed(1).schema)
            consumer.writer.write_batch(keyed(1))
            return consumer.end()

        assert "publish with DoPut" in await call(send_rows)

    async def test_a_schema_and_empty_batches_may_carry_a_consumers_words(self, peer, topic):
        consumer = await subscribe(peer)

        def ask() -> list[bytes]:
            consumer.writer.begin(keyed(1).schema)
            consumer.writer.write_with_metadata(keyed(0), b'{"credit": 2}')
            return consumer.payloads(2)

        assert await call(ask) == numbers(2)
        await call(consumer.leave)

    async def test_an_exclusive_subscription_has_one_consumer(self, peers, broker, topic):
        first = await subscribe(peers(), "one", type="exclusive", credit=1)
        await call(first.take, 1)
        second = await subscribe(peers(), "two", type="exclusive", credit=1)
        assert "held by consumer one" in await call(second.end)
        await call(first.leave)
        broker.clock.advance(HOLDER_GRACE_MS / 1000)
        second = await subscribe(peers(), "two", type="exclusive", credit=1)
        assert await call(second.payloads, 1) == [b"0"]
        await call(second.leave)

    async def test_limits_hold_as_for_single_messages(self, start_broker):
        broker = await start_broker(max_consumers_per_topic=1, max_subscriptions_per_topic=1)
        peer = FlightPeer(broker.server.client_port)
        await call(peer.publish, TOPIC, keyed(1))
        first = await subscribe(peer, "one", credit=1)
        await call(first.take, 1)
        second = await subscribe(peer, "two")
        assert "max_consumers_per_topic is 1" in await call(second.end)
        other = await call(peer.subscribe, TOPIC, "other", "one")
        assert "max_subscriptions_per_topic is 1" in await call(other.end)
        await call(first.leave)
        peer.close()


class TestEnds:
    async def test_a_consumer_of_the_same_name_takes_over_and_the_earlier_one_is_told(
        self, peers, topic
    ):
        first = await subscribe(peers(), credit=3)
        assert await call(first.payloads, 3) == numbers(3)
        second = await subscribe(peers(), credit=100)
        assert "give each consumer a unique name" in (await call(first.end) or "")
        assert await call(second.payloads, 10) == numbers(10)
        await call(second.leave)

    async def test_a_consumer_that_is_cut_off_has_left(self, peers, peer, topic):
        first = await subscribe(peers(), "one", credit=10)
        await call(first.take, 10)
        first.cancel()
        second = await subscribe(peer, "two", credit=10)
        assert await call(second.payloads, 10) == numbers(10)
        await call(second.leave)

    async def test_a_deleted_topic_ends_its_consumers(self, peer, broker, topic):
        consumer = await subscribe(peer, credit=100)
        await call(consumer.take, 10)
        await broker.client().delete_topic(TOPIC)
        broker.clock.advance(10)
        assert "no longer served" in (await call(consumer.end) or "")

    async def test_a_broker_that_stops_ends_its_consumers_at_once(self, peer, broker, topic):
        consumer = await subscribe(peer, credit=100)
        await call(consumer.take, 10)
        started = time.monotonic()
        await broker.stop()
        assert time.monotonic() - started < 3
        assert "stopping" in (await call(consumer.end) or "")


async def test_both_apis_see_the_same_messages(peer, broker):
    client = broker.client()
    producer = await client.create_producer(TOPIC)
    batch = payload_batch(
        [b"f0", b"f1"],
        routing_key=pa.array(["k", None]),
        attributes=pa.array([[("a", "1")], None], pa.map_(pa.utf8(), pa.utf8())),
        publish_time=pa.array([5, 6]),
        schema_id=pa.array([7, None], pa.uint64()),
        schema_version=pa.array([1, None], pa.uint32()),
    )
    await call(peer.publish, TOPIC, batch, producer="anne")
    await client.send(
        TOPIC, producer, b"m2", routing_key="k", attributes={"a": "1"}, publish_time=8, schema_id=9
    )
    await call(peer.publish, TOPIC, payload_batch([b"f3"], publish_time=pa.array([9])))
    await client.send(TOPIC, producer, b"m4", publish_time=10)

    consumer = await subscribe(peer, credit=100)
    rows = [row for each in await call(consumer.take, 5) for row in each.batch.to_pylist()]
    stream = await client.consume(TOPIC, "other", start_position="earliest")
    messages = await stream.take(5)
    assert [message.msg_id.topic_offset for message in messages] == list(range(5))
    for row, message in zip(rows, messages, strict=True):
        assert row["payload"] == message.payload
        assert row["publish_time"] == message.publish_time
        assert row["producer_name"] == message.producer_name
        assert row["routing_key"] == (
            message.routing_key if message.HasField("routing_key") else None
        )
        attributes = {k: v for k, v in message.attributes.items() if not k.startswith("x-")}
        assert dict(row["attributes"] or []) == attributes
        assert row["schema_id"] == (message.schema_id if message.HasField("schema_id") else None)
    await call(consumer.leave)


async def test_many_consumers_and_producers_of_both_apis_lose_nothing(peers, broker):
    client = broker.client()
    producer = await client.create_producer(TOPIC)
    consumers = [await subscribe(peers(), f"c{number}", credit=50) for number in range(3)]
    seen: list[bytes] = []
    total = 4 * 100 + 50

    def consume(consumer: Exchange) -> None:
        while len(seen) < total:
            rows = consumer.next()
            seen.extend(rows.payloads)
            start = rows.offsets[0]
            count = rows.batch.num_rows
            consumer.say(ack=[(start, start + count)], credit=count)

    reading = [asyncio.create_task(call(consume, consumer)) for consumer in consumers]
    batches = [payload_batch([b"f%d-%d" % (low, row) for row in range(100)]) for low in range(4)]
    publishing = asyncio.create_task(call(peers().publish, TOPIC, *batches))
    for number in range(50):
        await client.send(TOPIC, producer, b"m%d" % number)
    await publishing
    async with asyncio.timeout(20):
        while len(seen) < total:
            await asyncio.sleep(0.01)
    for consumer in consumers:
        consumer.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    expected = {b"f%d-%d" % (low, row) for low in range(4) for row in range(100)}
    assert set(seen) == expected | {b"m%d" % number for number in range(50)}
    assert len(seen) == total


async def test_a_descriptor_is_needed(peer):
    assert "whose command is a JSON object" in await call(refusal_of, exchange_by_path, peer)


def exchange_by_path(peer: FlightPeer) -> None:
    _, reader = peer.client.do_exchange(pa.flight.FlightDescriptor.for_path(TOPIC))
    reader.read_chunk()
