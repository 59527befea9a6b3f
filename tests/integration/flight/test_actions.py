"""DoAction: frontiers, cursors, seeking."""

import asyncio
import time

import pyarrow as pa
import pytest

from pydanube.wire.flight.service import ACTIONS
from tests.support.flight_peer import FlightPeer, call, payload_batch, refusal_of

TOPIC = "/default/orders"


def numbers(*bounds: int) -> list[bytes]:
    return [b"%d" % number for number in range(*bounds)]


def numbered(*bounds: int) -> pa.RecordBatch:
    times = pa.array([1_000 * number for number in range(*bounds)], pa.int64())
    return payload_batch(numbers(*bounds), publish_time=times)


@pytest.fixture
async def topic(peer: FlightPeer) -> str:
    """A topic of ten messages."""
    await call(peer.publish, TOPIC, numbered(4), numbered(4, 10))
    return TOPIC


async def test_every_action_is_listed_with_a_line_about_it(peer):
    listed = {each.type: each.description for each in await call(peer.client.list_actions)}
    assert listed == dict(ACTIONS)


@pytest.mark.parametrize(
    ("name", "body", "reason"),
    [
        ("fly", {}, "there is no action 'fly'"),
        ("frontier", {}, "topics"),
        ("frontier", {"topics": []}, "topics"),
        ("frontier", {"topics": ["/default/nowhere"]}, "does not exist"),
        ("frontier", {"topics": [TOPIC], "wait_ms": 10**6}, "wait_ms"),
        ("cursor.create", {"topic": TOPIC, "subscription": "s"}, "give either a position"),
        ("cursor.create", {"topic": TOPIC, "subscription": "s", "position": 11}, "position 11"),
        ("cursor.create", {"topic": TOPIC, "subscription": "", "position": 1}, "subscription name"),
        ("cursor.get", {"topic": TOPIC, "subscription": "s"}, "has no subscription s"),
        ("cursor.advance", {"topic": TOPIC, "subscription": "s", "position": 1}, "no subscription"),
        ("seek", {"topic": TOPIC, "subscription": "s", "position": 1}, "has no subscription s"),
        ("seek", {"topic": TOPIC, "subscription": "s", "position": 1, "now": 1}, "now"),
        ("producer", {"topic": TOPIC}, "producer"),
    ],
)
async def test_an_action_that_makes_no_sense_is_refused(peer, topic, name, body, reason):
    assert reason in await call(refusal_of, peer.act, name, **body)


class TestProperties:
    async def test_a_text_is_kept_with_a_topic_and_all_its_partitions(self, peer, topic, broker):
        await broker.client().create_partitioned("/default/parts", 2)
        for name in (topic, "/default/parts"):
            await call(peer.act, "property.set", topic=name, name="note", value="kept")
        found = await call(peer.act, "property.get", name="note")
        assert found == {"topics": {topic: "kept", "/default/parts": "kept"}}
        await call(peer.act, "property.set", topic=topic, name="note", value=None)
        assert topic not in (await call(peer.act, "property.get", name="note"))["topics"]
        found = await call(peer.act, "property.get", name="note", pattern="/default/p.*")
        assert list(found["topics"]) == ["/default/parts"]

    async def test_a_text_that_is_too_long_is_refused(self, peer, topic):
        body = {"topic": topic, "name": "note", "value": "x" * 20_000}
        assert "more than 16384 bytes" in await call(refusal_of, peer.act, "property.set", **body)


class TestFrontier:
    async def test_it_tells_where_topics_begin_and_end(self, peer, topic, broker):
        await broker.client().create_partitioned("/default/parts", 2)
        answer = await call(peer.act, "frontier", topics=[TOPIC, "/default/parts"])
        found = answer["topics"]
        assert sorted(found) == [TOPIC, "/default/parts-part-0", "/default/parts-part-1"]
        assert (found[TOPIC]["earliest"], found[TOPIC]["frontier"]) == (0, 10)
        assert found[TOPIC]["mean_row_bytes"] > 0
        assert found["/default/parts-part-0"]["frontier"] == 0
        assert len({each["id"] for each in found.values()}) == 3

    async def test_it_waits_until_there_is_more(self, peers, peer, topic):
        after = {TOPIC: 10}
        asking = asyncio.create_task(
            call(peer.act, "frontier", topics=[TOPIC], after=after, wait_ms=15_000)
        )
        await asyncio.sleep(0.1)
        assert not asking.done()
        await call(peers().publish, TOPIC, numbered(10, 12))
        answer = await asking
        assert answer["topics"][TOPIC]["frontier"] == 12

    async def test_it_does_not_wait_where_the_caller_is_behind(self, peer, topic):
        started = time.monotonic()
        await call(peer.act, "frontier", topics=[TOPIC], after={TOPIC: 9}, wait_ms=15_000)
        assert time.monotonic() - started < 5

    async def test_it_waits_no_longer_than_told(self, peer, topic):
        answer = await call(peer.act, "frontier", topics=[TOPIC], after={TOPIC: 10}, wait_ms=50)
        assert answer["topics"][TOPIC]["frontier"] == 10

    async def test_one_topic_of_many_is_enough(self, peers, peer, broker, topic):
        await broker.client().create_topic("/default/other")
        asking = asyncio.create_task(
            call(
                peer.act,
                "frontier",
                topics=["/default/other", TOPIC],
                after={TOPIC: 10},
                wait_ms=15_000,
            )
        )
        await asyncio.sleep(0.05)
        await call(peers().publish, "/default/other", numbered(1))
        assert (await asking)["topics"]["/default/other"]["frontier"] == 1

    async def test_a_topic_that_goes_away_ends_the_waiting(self, peer, broker, topic):
        asking = asyncio.create_task(
            call(peer.act, "frontier", topics=[TOPIC], after={TOPIC: 10}, wait_ms=15_000)
        )
        await asyncio.sleep(0.05)
        await broker.client().delete_topic(TOPIC)
        async with asyncio.timeout(10):  # Sooner than it was told to wait.
            await asking


class TestCursors:
    async def test_a_cursor_is_a_subscription_that_moves_forward_durably(self, peer, broker, topic):
        where = {"topic": TOPIC, "subscription": "job"}
        created = await call(peer.act, "cursor.create", **where, position=3)
        assert (created["position"], created["frontier"]) == (3, 10)
        assert await broker.client().subscriptions(TOPIC) == ["job"]
        assert "already" in await call(refusal_of, peer.act, "cursor.create", **where, position=0)
        moved = await call(peer.act, "cursor.advance", **where, position=7)
        assert moved["position"] == 7
        back = await call(peer.act, "cursor.advance", **where, position=5)
        assert back["position"] == 7
        await broker.restart()
        again = FlightPeer(broker.server.client_port)
        assert (await call(again.act, "cursor.get", **where))["position"] == 7
        consumer = await call(again.subscribe, *where.values(), "c", credit=100)
        assert await call(consumer.payloads, 3) == numbers(7, 10)
        again.close()

    @pytest.mark.parametrize(
        ("place", "position"),
        [
            ({"position": "earliest"}, 0),
            ({"position": "latest"}, 10),
            ({"time_ms": 4_500}, 5),
            ({"time_ms": 99_000}, 10),
        ],
    )
    async def test_a_cursor_may_begin_at_a_name_or_a_time(self, peer, topic, place, position):
        created = await call(peer.act, "cursor.create", topic=TOPIC, subscription="job", **place)
        assert created["position"] == position

    async def test_limits_hold_for_cursors(self, start_broker):
        broker = await start_broker(max_subscriptions_per_topic=1)
        peer = FlightPeer(broker.server.client_port)
        await call(peer.publish, TOPIC, numbered(1))
        await call(peer.act, "cursor.create", topic=TOPIC, subscription="one", position=0)
        text = await call(
            refusal_of, peer.act, "cursor.create", topic=TOPIC, subscription="two", position=0
        )
        assert "max_subscriptions_per_topic is 1" in text
        peer.close()


class TestSeek:
    @pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key_shared"])
    async def test_a_subscription_moves_back_and_its_consumers_go_on_from_there(
        self, peer, topic, kind
    ):
        consumer = await call(
            peer.subscribe, TOPIC, "s", "c", type=kind, credit=100, start_position="earliest"
        )
        if kind == "key_shared":
            assert await call(consumer.offsets, 1) == [0]  # All have one key, the producer's name.
        else:
            await call(consumer.take, 10)
            await call(consumer.ack, (0, 10))
        moved = await call(peer.act, "seek", topic=TOPIC, subscription="s", position=4)
        assert moved["position"] == 4
        rows = await call(consumer.next)
        assert (rows.offset, rows.attempt) == (4, 1)
        await call(consumer.leave)

    async def test_a_move_survives_a_restart_and_acks_under_way_do_not_undo_it(
        self, peer, broker, topic
    ):
        consumer = await call(
            peer.subscribe, TOPIC, "s", "c", credit=100, start_position="earliest"
        )
        await call(consumer.take, 10)
        await call(consumer.say, ack=[(0, 8)])
        await call(peer.act, "seek", topic=TOPIC, subscription="s", position=2)
        await broker.restart()
        again = FlightPeer(broker.server.client_port)
        cursor = await call(again.act, "cursor.get", topic=TOPIC, subscription="s")
        assert cursor["position"] == 2
        consumer = await call(again.subscribe, TOPIC, "s", "c", credit=100)
        assert await call(consumer.payloads, 8) == numbers(2, 10)
        again.close()

    async def test_late_acks_of_what_was_sent_before_the_move_settle_nothing(
        self, peer, broker, topic
    ):
        client = broker.client()
        stream = await client.consume(TOPIC, start_position="earliest")
        messages = await stream.take(10)
        await client.drop(stream)
        await call(peer.act, "seek", topic=TOPIC, subscription="s", position=0)
        await client.ack_all(messages)
        cursor = await call(peer.act, "cursor.get", topic=TOPIC, subscription="s")
        assert cursor["position"] == 0

    async def test_clients_of_single_messages_go_on_from_there_too(self, peer, broker, topic):
        client = broker.client()
        stream = await client.consume(TOPIC, start_position="earliest")
        await client.ack_all(await stream.take(10))
        await call(peer.act, "seek", topic=TOPIC, subscription="s", time_ms=6_000)
        assert await stream.payloads(4) == numbers(6, 10)
