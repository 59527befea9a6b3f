"""Cursors that pipelines mirror their progress in: vectors, leases, and the history they hold."""

import json

import pyarrow as pa
import pytest

from pydanube.storage.segments.tier import SegmentTier
from tests.support.flight_peer import FlightPeer, call, payload_batch, refusal_of
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"
BASE = "/default/parts"
PARTS = [f"{BASE}-part-{number}" for number in range(3)]
DAY = 24 * 3600


def numbered(*bounds: int) -> pa.RecordBatch:
    numbers = range(*bounds)
    times = pa.array([1_000 * number for number in numbers], pa.int64())
    return payload_batch([b"%d" % number for number in numbers], publish_time=times)


@pytest.fixture
async def parts(peer: FlightPeer, broker: RunningBroker) -> list[str]:
    """A partitioned topic with 5, 6 and 7 messages."""
    await broker.client().create_partitioned(BASE, 3)
    for number, part in enumerate(PARTS):
        await call(peer.publish, part, numbered(5 + number))
    return PARTS


async def act(peer: FlightPeer, action: str, topic: str = TOPIC, **body: object) -> dict:
    return await call(peer.act, action, topic=topic, subscription="job", **body)


class TestVectors:
    async def test_one_call_creates_cursors_at_a_vector(self, peer, parts):
        positions = {parts[0]: 1, parts[1]: "latest", parts[2]: "earliest"}
        answer = await call(peer.act, "cursor.create", subscription="job", positions=positions)
        assert {name: each["position"] for name, each in answer["cursors"].items()} == {
            parts[0]: 1,
            parts[1]: 6,
            parts[2]: 0,
        }
        assert len({each["id"] for each in answer["cursors"].values()}) == 3

    async def test_a_base_stands_for_all_its_partitions(self, peer, parts):
        await act(peer, "cursor.create", BASE, time_ms=3_000)
        found = (await act(peer, "cursor.get", BASE))["cursors"]
        assert {name: each["position"] for name, each in found.items()} == dict.fromkeys(parts, 3)
        moved = (await act(peer, "cursor.advance", BASE, position="latest"))["cursors"]
        assert [moved[part]["position"] for part in parts] == [5, 6, 7]
        back = (await act(peer, "seek", BASE, position="earliest"))["cursors"]
        assert [back[part]["position"] for part in parts] == [0, 0, 0]

    async def test_a_vector_survives_a_restart(self, peer, broker, parts):
        await act(peer, "cursor.create", BASE, position="earliest")
        positions = {parts[0]: 2, parts[2]: 4}
        await call(peer.act, "cursor.advance", subscription="job", positions=positions)
        await broker.restart()
        again = FlightPeer(broker.server.client_port)
        found = (await act(again, "cursor.get", BASE))["cursors"]
        assert [found[part]["position"] for part in parts] == [2, 0, 4]
        again.close()

    @pytest.mark.parametrize(
        ("action", "body", "reason"),
        [
            ("cursor.create", {"topic": BASE, "position": 1}, "belongs to one topic"),
            ("cursor.create", {"positions": {PARTS[0]: 1, PARTS[1]: 99}}, "position 99 is none"),
            ("cursor.create", {"positions": {PARTS[0]: 1, "/default/no": 1}}, "does not exist"),
            ("cursor.create", {"positions": {}}, "name no topic"),
            ("cursor.create", {"position": 1}, "one of topic, topics and positions"),
            (
                "cursor.create",
                {"topic": PARTS[0], "topics": [PARTS[1]], "position": 1},
                "one of topic, topics and positions",
            ),
            (
                "cursor.create",
                {"positions": {PARTS[0]: 1}, "position": 1},
                "either a position",
            ),
            ("cursor.create", {"topic": BASE, "position": "latest", "ttl_ms": 5}, "needs a holder"),
            ("cursor.create", {"topic": BASE, "position": 0, "holder": "\n"}, "holder name"),
            ("cursor.lease", {"topic": BASE}, "needs a holder"),
            ("cursor.lease", {"topic": BASE, "holder": "me"}, "has no subscription"),
        ],
    )
    async def test_a_vector_is_refused_as_a_whole(self, peer, broker, parts, action, body, reason):
        before = broker.metadata()
        assert reason in await call(refusal_of, peer.act, action, subscription="job", **body)
        assert broker.metadata() == before

    async def test_creating_again_keeps_what_is_there_if_told_to(self, peer, parts):
        await call(peer.act, "cursor.create", subscription="job", positions={parts[1]: 3})
        assert "already" in await call(
            refusal_of, peer.act, "cursor.create", topic=BASE, subscription="job", position="latest"
        )
        answer = await act(peer, "cursor.create", BASE, position="latest", existing="keep")
        assert [answer["cursors"][part]["position"] for part in parts] == [5, 3, 7]


class TestLeases:
    async def test_only_the_newest_holder_advances(self, peer, broker):
        await call(peer.publish, TOPIC, numbered(10))
        created = await act(peer, "cursor.create", position=0, holder="first run")
        assert (created["holder"], created["holds"], created["ttl_ms"]) == (
            "first run",
            True,
            7 * DAY * 1000,
        )
        await act(peer, "cursor.advance", position=2, holder="first run")
        taken = await act(peer, "cursor.lease", holder="second run", ttl_ms=60_000)
        assert (taken["position"], taken["holder"]) == (2, "second run")
        for body in ({"holder": "first run"}, {}):
            where = {"topic": TOPIC, "subscription": "job", "position": 5}
            text = await call(refusal_of, peer.act, "cursor.advance", **where, **body)
            assert "is held by second run" in text
        assert (await act(peer, "cursor.get"))["position"] == 2
        await broker.restart()
        again = FlightPeer(broker.server.client_port)
        moved = await act(again, "cursor.advance", position=5, holder="second run")
        assert (moved["position"], moved["ttl_ms"]) == (5, 60_000)
        again.close()

    async def test_an_untouched_hold_lapses_and_shows(self, peer, broker, caplog):
        await call(peer.publish, TOPIC, numbered(10))
        await act(peer, "cursor.create", position=0, holder="job", ttl_ms=DAY * 1000)
        broker.clock.advance(DAY / 2)
        await act(peer, "cursor.advance", position=0, holder="job")
        broker.clock.advance(DAY - 60)
        assert (await act(peer, "cursor.get"))["holds"] is True
        broker.clock.advance(120)
        assert (await act(peer, "cursor.get"))["holds"] is False
        await broker.until(lambda: "no longer holds history" in caplog.text)
        metrics = await broker.server._metrics.render(_at_once)
        assert b"danube_subscription_hold_lapsed{" in metrics
        (line,) = [each for each in metrics.splitlines() if b"hold_lapsed{" in each]
        assert line.endswith(b" 1")
        await act(peer, "cursor.advance", position=3, holder="job")
        assert (await act(peer, "cursor.get"))["holds"] is True


async def _at_once(work) -> bytes:
    return work()


class TestHolds:
    """Retention of one byte, so that everything goes that nobody holds."""

    @pytest.fixture
    async def broker(self, start_broker) -> RunningBroker:
        return await start_broker(retention_bytes=1, retention_ms=1)

    async def first_offset(self, broker: RunningBroker) -> int:
        """Export, let retention pass, and tell what is left."""
        storage = broker._serving.storage
        topic = broker.topics.get(TOPIC)
        await storage.seal_topic(topic.record.id)
        broker.clock.advance(1)
        tier: SegmentTier = storage._tier
        await tier.upkeep.go_round()
        assert topic.log is not None
        return topic.log.first_offset

    async def publish(self, peer: FlightPeer, broker: RunningBroker) -> None:
        """Three segments of ten messages."""
        for low in (0, 10, 20):
            await call(peer.publish, TOPIC, numbered(low, low + 10))
            await broker._serving.storage.seal_topic(broker.topics.get(TOPIC).record.id)

    async def test_history_stays_from_the_cursor_on(self, peer, broker):
        await call(peer.publish, TOPIC, numbered(1))
        await act(peer, "cursor.create", position=0, holder="job", ttl_ms=DAY * 1000)
        await self.publish(peer, broker)
        assert await self.first_offset(broker) == 0
        await act(peer, "cursor.advance", position=25, holder="job")
        assert await self.first_offset(broker) == 21
        await act(peer, "cursor.advance", position=31, holder="job")
        assert await self.first_offset(broker) == 31

    async def test_history_goes_once_the_hold_has_lapsed(self, peer, broker):
        await call(peer.publish, TOPIC, numbered(1))
        await act(peer, "cursor.create", position=0, holder="job", ttl_ms=DAY * 1000)
        await self.publish(peer, broker)
        broker.clock.advance(DAY + 1)
        assert await self.first_offset(broker) == 31

    async def test_a_lease_that_holds_nothing_keeps_nothing(self, peer, broker):
        await call(peer.publish, TOPIC, numbered(1))
        await act(peer, "cursor.create", position=0, holder="job", hold=False)
        await self.publish(peer, broker)
        assert await self.first_offset(broker) == 31
        assert (await act(peer, "cursor.get"))["position"] == 0

    async def test_a_cursor_without_a_lease_holds_for_ever(self, peer, broker):
        await call(peer.publish, TOPIC, numbered(1))
        await act(peer, "cursor.create", position=0)
        await self.publish(peer, broker)
        broker.clock.advance(100 * DAY)
        assert await self.first_offset(broker) == 0


class TestPatterns:
    async def test_a_plan_may_choose_topics_by_pattern(self, peer, broker, parts):
        await call(peer.publish, TOPIC, numbered(4))
        await call(peer.publish, "/default/fleeting", numbered(4), dispatch="non_reliable")
        info = await call(peer.plan, pattern="/default/(orders|parts|fleeting)")
        notes = json.loads(info.app_metadata)
        assert notes["ranges"] == {
            TOPIC: [0, 4],
            parts[0]: [0, 5],
            parts[1]: [0, 6],
            parts[2]: [0, 7],
        }
        assert notes["ids"].keys() == notes["ranges"].keys()
        assert info.total_records == 22
        found = [row for each in info.endpoints for row in await call(peer.payloads, each.ticket)]
        assert len(found) == 22
        await call(peer.publish, TOPIC, numbered(4, 9))
        again = [row for each in info.endpoints for row in await call(peer.payloads, each.ticket)]
        assert again == found, "a plan is fixed"

    async def test_a_pattern_takes_times_and_ranges(self, peer, parts):
        info = await call(peer.plan, pattern="/default/p.*", from_time_ms=5_000, to_time_ms=6_000)
        ranges = json.loads(info.app_metadata)["ranges"]
        assert ranges == {parts[0]: [5, 5], parts[1]: [5, 6], parts[2]: [5, 6]}
        info = await call(peer.plan, pattern="/default/p.*", ranges={parts[1]: [1, 3]})
        assert json.loads(info.app_metadata)["ranges"] == {parts[1]: [1, 3]}

    async def test_a_pattern_may_choose_nothing(self, peer, broker):
        info = await call(peer.plan, pattern="/default/nothing.*")
        assert (info.total_records, info.endpoints) == (0, [])
        assert await call(peer.act, "frontier", pattern="/no/.*", wait_ms=10) == {"topics": {}}

    @pytest.mark.parametrize(
        ("command", "reason"),
        [
            ({}, "either topics by name, or a pattern"),
            ({"topic": BASE, "pattern": ".*"}, "either topics by name, or a pattern"),
            ({"pattern": "("}, "is no regular expression"),
            ({"pattern": "/default/parts", "from": 3}, "offsets of its own"),
            ({"pattern": "/default/parts", "ranges": {TOPIC: [0, 1]}}, "has no partition"),
        ],
    )
    async def test_a_plan_that_makes_no_sense_is_refused(self, peer, parts, command, reason):
        assert reason in await call(refusal_of, peer.plan, **command)

    async def test_frontiers_and_times_go_by_pattern_too(self, peer, parts):
        found = (await call(peer.act, "frontier", pattern="/default/parts"))["topics"]
        assert [found[part]["frontier"] for part in parts] == [5, 6, 7]
        found = (await call(peer.act, "offsets", pattern=".*/parts", time_ms=5_500))["topics"]
        assert [found[part]["offset"] for part in parts] == [5, 6, 6]
        assert {each["frontier"] for each in found.values()} == {5, 6, 7}
        named = await call(peer.act, "offsets", topics=[BASE], time_ms=5_500)
        assert named["topics"] == found

    async def test_a_topic_that_appears_is_in_the_next_answer(self, peer, peers, parts):
        after = {parts[0]: 5, parts[1]: 6, parts[2]: 7}
        await call(peers().publish, "/default/partly", numbered(2))
        answer = await call(
            peer.act, "frontier", pattern="/default/part.*", after=after, wait_ms=15_000
        )
        assert answer["topics"]["/default/partly"]["frontier"] == 2


async def test_each_life_of_a_producer_has_its_own_last_sequence(peer):
    for session, last in ((1, 4), (2, 8)):
        put = await call(peer.put, TOPIC, producer="p", session=session)
        put.write(payload_batch([b"a", b"b"]), first_sequence=last - 1, digest=7)
        assert (await call(put.result))["result"] == "applied"
        await call(put.close)
    where = {"topic": TOPIC, "producer": "p"}
    assert (await call(peer.act, "producer", **where, session=1))["last_sequence"] == 4
    second = await call(peer.act, "producer", **where, session=2)
    assert (second["first_sequence"], second["last_sequence"], second["digest"]) == (7, 8, 7)
    assert (await call(peer.act, "producer", **where))["last_sequence"] is None
