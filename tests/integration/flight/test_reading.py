"""ListFlights, GetFlightInfo, GetSchema and DoGet: what is there, and how it is read."""

import json
from itertools import pairwise

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from pydanube.model.batch import SCHEMA
from tests.support.flight_peer import call, payload_batch, refusal_of

TOPIC = "/default/orders"


def numbered(first: int, end: int) -> pa.RecordBatch:
    times = pa.array([1_000 * number for number in range(first, end)], pa.int64())
    return payload_batch([b"%d" % number for number in range(first, end)], publish_time=times)


async def publish_numbers(peer, *ends: int, topic: str = TOPIC) -> None:
    """Publish messages with the payloads 0, 1, 2 … in batches that end where told."""
    edges = [0, *ends]
    batches = [numbered(low, high) for low, high in zip(edges, ends, strict=False)]
    await call(peer.publish, topic, *batches)


def numbers(*bounds: int) -> list[bytes]:
    return [b"%d" % number for number in range(*bounds)]


class TestRanges:
    async def test_a_topic_is_read_from_its_first_to_its_last_offset(self, peer):
        await publish_numbers(peer, 3, 10, 11)
        rows = await call(peer.read, TOPIC)
        assert [each.offset for each in rows] == [0, 3, 10]
        assert await call(peer.payloads, TOPIC) == numbers(11)

    @pytest.mark.parametrize(
        ("start", "end"),
        [(0, 1), (0, 3), (2, 4), (3, 10), (9, 11), (5, 5), (0, 0), (11, 11), (4, 7)],
    )
    async def test_a_range_is_exactly_what_was_asked_for(self, peer, start, end):
        await publish_numbers(peer, 3, 10, 11)
        ticket = {"topic": TOPIC, "from": start, "to": end}
        rows = await call(peer.read, ticket)
        assert [offset for each in rows for offset in each.offsets] == list(range(start, end))
        assert [payload for each in rows for payload in each.payloads] == numbers(start, end)

    async def test_the_ends_have_names(self, peer):
        await publish_numbers(peer, 5)
        assert await call(peer.payloads, {"topic": TOPIC, "from": 3}) == numbers(3, 5)
        assert await call(peer.payloads, {"topic": TOPIC, "to": 2}) == numbers(2)
        assert await call(peer.payloads, {"topic": TOPIC, "from": "latest"}) == []
        everything = {"topic": TOPIC, "from": "earliest", "to": "latest"}
        assert await call(peer.payloads, everything) == numbers(5)

    @pytest.mark.parametrize(
        ("bounds", "reason"),
        [
            ({"to": 6}, "offsets 0 to before 5, not 0 to before 6"),
            ({"from": 6, "to": 7}, "offsets 0 to before 5"),
            ({"from": 4, "to": 3}, "goes backwards"),
            ({"from": -1}, "ticket"),
            ({"from": "first"}, "ticket"),
            ({"until": 3}, "until"),
            ({"from": 2**63}, "ticket"),
        ],
    )
    async def test_a_range_that_is_not_there_is_refused_with_what_is(self, peer, bounds, reason):
        await publish_numbers(peer, 5)
        text = await call(refusal_of, peer.read, {"topic": TOPIC, **bounds})
        assert reason in text

    async def test_an_empty_topic_is_read_as_nothing(self, peer, broker):
        await broker.client().create_topic(TOPIC)
        assert await call(peer.read, TOPIC) == []
        table = await call(lambda: peer.client.do_get(flight.Ticket(TOPIC.encode())).read_all())
        assert (table.num_rows, table.schema) == (0, SCHEMA)

    async def test_an_unknown_topic_is_not_found(self, peer):
        with pytest.raises(pa.ArrowKeyError, match="topic /default/orders does not exist"):
            await call(peer.read, TOPIC)
        with pytest.raises(pa.ArrowKeyError, match="does not exist"):
            await call(peer.plan, topic=TOPIC)
        assert "must have the form" in await call(refusal_of, peer.read, "orders")
        assert "neither a topic" in await call(refusal_of, peer.read, flight.Ticket(b"\xff"))

    async def test_a_best_effort_topic_keeps_nothing_to_read(self, peer):
        await call(peer.publish, TOPIC, payload_batch([b"x"]), dispatch="non_reliable")
        for function, argument in (
            (peer.read, TOPIC),
            (lambda topic: peer.plan(topic=topic), TOPIC),
            (lambda topic: peer.act("frontier", topics=[topic]), TOPIC),
        ):
            text = await call(refusal_of, function, argument)
            assert "is not reliable" in text
            assert "DoExchange" in text

    async def test_a_ticket_is_of_one_life_of_a_topic(self, peer, broker):
        await publish_numbers(peer, 5)
        (endpoint,) = (await call(peer.plan, topic=TOPIC)).endpoints
        assert await call(peer.payloads, endpoint.ticket) == numbers(5)
        await broker.client().delete_topic(TOPIC)
        await publish_numbers(peer, 5)
        assert "is gone" in await call(refusal_of, peer.read, endpoint.ticket)

    async def test_messages_that_came_one_by_one_are_read_in_columns(self, peer, broker):
        client = broker.client()
        producer = await client.create_producer(TOPIC)
        for number in range(3):
            await client.send(
                TOPIC, producer, b"%d" % number, routing_key="k", attributes={"a": str(number)}
            )
        rows = [row for each in await call(peer.read, TOPIC) for row in each.batch.to_pylist()]
        assert [row["payload"] for row in rows] == numbers(3)
        assert [row["attributes"] for row in rows] == [[("a", str(number))] for number in range(3)]
        assert {(row["routing_key"], row["producer_name"]) for row in rows} == {("k", "p")}

    async def test_what_has_left_the_cache_is_read_all_the_same(self, peer, broker):
        await publish_numbers(peer, 3, 10, 11)
        await broker.restart()
        again = type(peer)(broker.server.client_port)
        assert await call(again.payloads, {"topic": TOPIC, "from": 1, "to": 11}) == numbers(1, 11)
        again.close()


class TestListing:
    async def test_topics_are_listed_by_prefix(self, peer, broker):
        client = broker.client()
        await publish_numbers(peer, 5)
        await client.create_topic("/default/ordinary", reliable=False)
        await client.create_topic("/default/other")
        listed = await call(peer.topics)
        assert sorted(listed) == ["/default/orders", "/default/ordinary", "/default/other"]
        assert sorted(await call(peer.topics, "/default/ord")) == [
            "/default/orders",
            "/default/ordinary",
        ]
        assert await call(peer.topics, "/nowhere") == {}
        assert listed[TOPIC].total_records == 5
        assert listed[TOPIC].schema == SCHEMA
        assert json.loads(listed["/default/ordinary"].app_metadata)["dispatch"] == "non_reliable"
        assert listed["/default/ordinary"].endpoints == []
        (endpoint,) = listed[TOPIC].endpoints
        assert await call(peer.payloads, endpoint.ticket) == numbers(5)

    async def test_a_partitioned_topic_is_listed_once(self, peer, broker):
        await broker.client().create_partitioned(TOPIC, 3)
        await publish_numbers(peer, 4, topic=f"{TOPIC}-part-1")
        ((name, info),) = (await call(peer.topics)).items()
        assert (name, info.total_records, len(info.endpoints)) == (TOPIC, 4, 3)
        partitions = json.loads(info.app_metadata)["partitions"]
        assert partitions == [f"{TOPIC}-part-{number}" for number in range(3)]

    async def test_a_long_list_arrives_whole(self, peer, broker):
        client = broker.client()
        for number in range(150):
            await client.create_topic(f"/default/t{number:03}")
        assert len(await call(peer.topics)) == 150

    async def test_every_topic_has_the_same_schema(self, peer, broker):
        await broker.client().create_topic(TOPIC)
        descriptor = flight.FlightDescriptor.for_path(TOPIC)
        assert (await call(peer.client.get_schema, descriptor)).schema == SCHEMA
        nowhere = flight.FlightDescriptor.for_path("/default/nowhere")
        assert "does not exist" in await call(refusal_of, peer.client.get_schema, nowhere)


class TestPlans:
    async def test_a_plan_covers_the_range_with_pieces_side_by_side(self, peer):
        await publish_numbers(peer, 100, 200, 300, 400)
        info = await call(peer.plan, topic=TOPIC, **{"from": 50, "to": 390}, piece_bytes=3_000)
        assert len(info.endpoints) > 3
        assert info.total_records == 340
        notes = [json.loads(endpoint.app_metadata) for endpoint in info.endpoints]
        assert notes[0]["from"] == 50
        assert notes[-1]["to"] == 390
        assert all(low["to"] == high["from"] for low, high in pairwise(notes))
        payloads = []
        for endpoint in info.endpoints:
            (location,) = endpoint.locations
            assert location.uri.decode().startswith("grpc+tcp://127.0.0.1:")
            payloads += await call(read_at, location, endpoint.ticket)
        assert payloads == numbers(50, 390)

    async def test_a_plan_does_not_grow_with_the_topic(self, peer):
        await publish_numbers(peer, 10)
        info = await call(peer.plan, topic=TOPIC)
        await call(peer.publish, TOPIC, numbered(10, 20))
        (endpoint,) = info.endpoints
        assert await call(peer.payloads, endpoint.ticket) == numbers(10)

    async def test_a_range_of_time_is_planned_by_publish_times(self, peer):
        await publish_numbers(peer, 3, 10, 30, 31)
        info = await call(peer.plan, topic=TOPIC, from_time_ms=4_500, to_time_ms=30_000)
        assert await self.payloads_of(peer, info) == numbers(5, 30)
        info = await call(peer.plan, topic=TOPIC, from_time_ms=31_000)
        assert info.endpoints == []
        info = await call(peer.plan, topic=TOPIC, from_time_ms=9_000, to_time_ms=2_000)
        assert info.total_records == 0

    async def test_a_partitioned_topic_is_planned_with_all_its_partitions(self, peer, broker):
        await broker.client().create_partitioned(TOPIC, 2)
        parts = [f"{TOPIC}-part-{number}" for number in range(2)]
        await publish_numbers(peer, 5, topic=parts[0])
        await publish_numbers(peer, 8, topic=parts[1])
        info = await call(peer.plan, topic=TOPIC)
        assert (info.total_records, info.ordered) == (13, False)
        assert sorted(await self.payloads_of(peer, info)) == sorted(numbers(5) + numbers(8))
        info = await call(peer.plan, topic=TOPIC, ranges={parts[1]: [2, 4]})
        assert await self.payloads_of(peer, info) == numbers(2, 4)

    @pytest.mark.parametrize(
        ("command", "reason"),
        [
            ({"from": 3}, "give them as ranges"),
            ({"ranges": {"/default/other": [0, 1]}}, "has no partition /default/other"),
            ({"ranges": {f"{TOPIC}-part-0": [0, 9]}}, "offsets 0 to before 0"),
            ({"ranges": {f"{TOPIC}-part-0": [0, 0]}, "to": "earliest"}, "either ranges"),
            ({"ranges": {f"{TOPIC}-part-0": [0]}}, "the command to plan a read"),
            ({"piece_bytes": 0}, "piece_bytes"),
        ],
    )
    async def test_a_plan_that_makes_no_sense_is_refused(self, peer, broker, command, reason):
        await broker.client().create_partitioned(TOPIC, 2)
        assert reason in await call(refusal_of, peer.plan, topic=TOPIC, **command)

    @staticmethod
    async def payloads_of(peer, info: flight.FlightInfo) -> list[bytes]:
        found: list[bytes] = []
        for endpoint in info.endpoints:
            found += await call(peer.payloads, endpoint.ticket)
        return found


def read_at(location: flight.Location, ticket: flight.Ticket) -> list[bytes]:
    with flight.connect(location) as client:
        return client.do_get(ticket).read_all()["payload"].to_pylist()


async def test_a_reader_that_goes_away_leaves_nothing_behind(peer, broker):
    await call(peer.publish, TOPIC, *[payload_batch([bytes(100_000)] * 10) for _ in range(10)])

    def read_a_little() -> None:
        reader = peer.client.do_get(flight.Ticket(TOPIC.encode()))
        reader.read_chunk()
        reader.cancel()

    for _ in range(5):
        await call(read_a_little)
    assert len(await call(peer.payloads, TOPIC)) == 100
