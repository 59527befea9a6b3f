"""DoPut: what is stored, what is answered, and that a stream ends at its first refusal."""

import asyncio
import random
import time

import pyarrow as pa
import pytest

from pydanube.model.batch import SCHEMA, Batch
from pydanube.model.message import Message
from pydanube.wire.flight.convert import BATCH_BYTES_MAX
from tests.support.flight_peer import PAYLOADS, FlightPeer, call, payload_batch, refusal_of

TOPIC = "/default/orders"


async def test_each_batch_is_answered_with_its_first_offset(peer):
    batches = [payload_batch([b"a", b"b"]), payload_batch([b"c"]), payload_batch([b"d"] * 5)]
    results = await call(peer.publish, TOPIC, *batches)
    assert results == [
        {"result": "applied", "rows": 2, "offset": 0},
        {"result": "applied", "rows": 1, "offset": 2},
        {"result": "applied", "rows": 5, "offset": 3},
    ]
    assert await call(peer.payloads, TOPIC) == [b"a", b"b", b"c"] + [b"d"] * 5


async def test_a_batch_of_our_schema_is_stored_as_its_bytes(peer, broker):
    rows = Batch.gather(
        [
            Message(
                payload=b"p%d" % number,
                publish_time_ms=number,
                producer_name=f"n{number}",
                routing_key=None if number % 2 else "key",
                attributes={"a": str(number)},
                schema_id=7,
                schema_version=1,
            )
            for number in range(4)
        ]
    ).record_batch()
    await call(peer.publish, TOPIC, rows)
    (found,) = await call(peer.read, TOPIC)
    assert found.batch == rows
    assert found.batch.schema == SCHEMA


async def test_long_and_short_batches_of_our_schema_come_back_as_they_were(peers, broker):
    def rows(number: int, size: int) -> pa.RecordBatch:
        random_bytes = random.Random(number).randbytes
        return Batch.gather(
            [
                Message(payload=random_bytes(size), publish_time_ms=row, producer_name=f"n{number}")
                for row in range(10)
            ]
        ).record_batch()

    sizes = [40_000, 10, 500_000, 200_000, 1_400_000, 100, 30_000]
    sent = [rows(number, size) for number, size in enumerate(sizes)]
    peer = peers()

    await call(peer.publish, TOPIC, *sent)
    assert [found.batch for found in await call(peer.read, TOPIC)] == sent
    await broker.restart()
    assert [found.batch for found in await call(peers().read, TOPIC)] == sent


async def test_missing_columns_are_filled_with_the_producer_and_the_time(peer):
    before = int(time.time() * 1000)
    await call(peer.publish, TOPIC, payload_batch([b"x"]), producer="anne")
    (rows,) = await call(peer.read, TOPIC)
    (row,) = rows.batch.to_pylist()
    assert row["producer_name"] == "anne"
    assert before <= row["publish_time"] <= time.time() * 1000 + 1


async def test_a_path_names_the_topic_as_well(peer):
    def publish() -> None:
        descriptor = pa.flight.FlightDescriptor.for_path(TOPIC)
        writer, _ = peer.client.do_put(descriptor, PAYLOADS)
        writer.write_batch(payload_batch([b"x"]))
        writer.close()

    await call(publish)
    assert await call(peer.payloads, TOPIC) == [b"x"]


async def test_results_come_while_the_stream_is_open(peer):
    def publish() -> list[int]:
        put = peer.put(TOPIC)
        offsets = []
        for number in range(20):
            put.write(payload_batch([b"%d" % number]))
            result = put.result()
            assert result is not None
            offsets.append(result["offset"])
        put.close()
        return offsets

    assert await call(publish) == list(range(20))


async def test_many_batches_under_way_are_answered_in_order(peer):
    batches = [payload_batch([b"%d" % number] * 3) for number in range(300)]
    results = await call(peer.publish, TOPIC, *batches)
    assert [result["offset"] for result in results] == list(range(0, 900, 3))


async def test_batches_of_the_largest_size_pass(peer):
    large = payload_batch([bytes(1024 * 1024)] * 15)
    results = await call(peer.publish, TOPIC, large, large, large)
    assert [result["offset"] for result in results] == [0, 15, 30]
    assert sum(map(len, await call(peer.payloads, TOPIC))) == 45 * 1024 * 1024


async def test_a_batch_without_rows_is_answered_and_stores_nothing(peer):
    results = await call(peer.publish, TOPIC, payload_batch([]), payload_batch([b"x"]))
    assert results[0] == {"result": "applied", "rows": 0}
    assert results[1]["offset"] == 0


async def test_best_effort_topics_take_batches_without_giving_offsets(peer):
    results = await call(peer.publish, TOPIC, payload_batch([b"x"] * 3), dispatch="non_reliable")
    assert results == [{"result": "applied", "rows": 3}]
    results = await call(peer.publish, TOPIC, payload_batch([b"x"]))
    assert results == [{"result": "applied", "rows": 1}]


async def test_a_table_of_any_columns_may_be_published_if_the_others_are_to_be_ignored(peer):
    batch = payload_batch([b"x"], price=pa.array([1.5]))
    put = await call(peer.put, TOPIC, batch.schema)
    assert "column price" in await call(put.refusal)
    await call(peer.publish, TOPIC, batch, other_columns="ignore")
    assert await call(peer.payloads, TOPIC) == [b"x"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("command", "reason"),
        [
            ({"topic": "orders"}, "must have the form /namespace/topic"),
            ({"topic": "/nowhere/orders"}, "namespace nowhere does not exist"),
            ({"topic": TOPIC, "producer": ""}, "producer name must be"),
            ({"topic": TOPIC, "dispatch": "sometimes"}, "dispatch"),
            ({"topic": TOPIC, "colour": "red"}, "colour"),
            ({"topic": TOPIC, "schema_subject": "orders"}, "subject"),
        ],
    )
    async def test_a_command_that_makes_no_sense_is_refused_with_its_reason(
        self, peer, command, reason
    ):
        put = await call(peer.put, **command)
        assert await call(put.result) is None
        assert reason in await call(put.refusal)

    async def test_a_topic_is_what_it_is(self, peer):
        await call(peer.publish, TOPIC, payload_batch([b"x"]))
        put = await call(peer.put, TOPIC, dispatch="non_reliable")
        assert "is Reliable" in await call(put.refusal)

    async def test_a_stream_ends_at_its_first_refusal_and_nothing_behind_it_is_stored(
        self, start_broker
    ):
        broker = await start_broker(max_message_size=1_000)
        peer = FlightPeer(broker.server.client_port)

        def publish():
            put = peer.put(TOPIC)
            for size in (10, 1_001, 10, 10, 10):
                try:
                    put.write(payload_batch([bytes(size)] * 2))
                except OSError:
                    break  # The broker has told already.
            results = []
            while (result := put.result()) is not None:
                results.append(result)
            return results, put.refusal()

        results, text = await call(publish)
        assert results == [{"result": "applied", "rows": 2, "offset": 0}]
        assert "1001 bytes" in text
        assert "max_message_size" in text
        assert len(await call(peer.payloads, TOPIC)) == 2
        peer.close()

    async def test_hostile_bytes_in_the_middle_of_a_stream_end_it(self, peer):
        def publish():
            put = peer.put(TOPIC)
            put.write(payload_batch([b"good"]))
            assert put.result() is not None
            put.writer.write_metadata(b"metadata alone")
            return put.result(), put.refusal()

        result, text = await call(publish)
        assert result is None
        assert "without a batch" in text
        assert await call(peer.payloads, TOPIC) == [b"good"]

    async def test_a_batch_that_is_too_large_is_refused(self, peer):
        put = await call(peer.put, TOPIC)

        def publish():
            put.write(payload_batch([bytes(1024 * 1024 - 2_000)] * 16))
            return put.result(), put.refusal()

        result, text = await call(publish)
        assert result is None
        assert str(BATCH_BYTES_MAX) in text

    async def test_an_exclusive_producer_has_the_topic_for_itself_while_its_stream_is_open(
        self, peers, broker
    ):
        first, second = peers(), peers()
        put = await call(first.put, TOPIC, access="exclusive", producer="one")
        await call(put.write, payload_batch([b"1"]))
        assert (await call(put.result))["offset"] == 0
        broker.clock.advance(3_600)
        other = await call(second.put, TOPIC, producer="two")
        assert "producer one has exclusive access" in await call(other.refusal)
        await call(put.close)
        broker.clock.advance(3_600)
        results = await call(second.publish, TOPIC, payload_batch([b"2"]), producer="two")
        assert results[0]["offset"] == 1


class TestSequences:
    async def test_a_repeated_batch_is_stored_once(self, peer):
        def publish(**numbers):
            put = peer.put(TOPIC, producer="anne")
            put.write(payload_batch([b"a", b"b", b"c"]), **numbers)
            result = put.result()
            put.close()
            return result

        first = await call(publish, first_sequence=10)
        again = await call(publish, first_sequence=10, last_sequence=12)
        assert first == {"result": "applied", "rows": 3, "offset": 0}
        assert again == {"result": "already_applied", "rows": 3, "offset": 0}
        assert len(await call(peer.payloads, TOPIC)) == 3
        assert await call(peer.act, "producer", topic=TOPIC, producer="anne") == {
            "first_sequence": 10,
            "last_sequence": 12,
            "digest": None,
            "offset": 0,
            "rows": 3,
        }

    async def test_another_session_counts_for_itself(self, peer):
        def publish(**command):
            put = peer.put(TOPIC, producer="anne", **command)
            put.write(payload_batch([b"a"]), first_sequence=1)
            result = put.result()
            put.close()
            return result["result"]

        assert await call(publish, session=1) == "applied"
        assert await call(publish, session=1) == "already_applied"
        assert await call(publish, session=2) == "applied"
        assert await call(publish) == "applied"

    async def test_a_batch_is_not_stored_before_the_one_it_names(self, peer):
        put = await call(peer.put, TOPIC, producer="anne")
        await call(put.write, payload_batch([b"b"]), first_sequence=5, previous_sequence=4)
        assert await call(put.result) is None
        assert "sequence 4 has not been stored" in await call(put.refusal)

    async def test_an_overlap_says_what_is_stored_and_ends_the_stream(self, peer):
        def publish():
            put = peer.put(TOPIC, producer="anne")
            put.write(payload_batch([b"1", b"2", b"3"]), first_sequence=1)
            put.write(payload_batch([b"3", b"4"]), first_sequence=3)
            # Were these stored, the sender would find its next try already applied.
            for first in (5, 6, 7):
                try:
                    put.write(payload_batch([b"later"]), first_sequence=first)
                except OSError:
                    break
            results = []
            while (result := put.result()) is not None:
                results.append(result)
            return results, put.refusal()

        results, text = await call(publish)
        assert results == [
            {"result": "applied", "rows": 3, "offset": 0},
            {"result": "overlap", "rows": 2, "last_sequence": 3},
        ]
        assert "up to 3" in text
        assert await call(peer.payloads, TOPIC) == [b"1", b"2", b"3"]

    async def test_another_batch_under_the_same_numbers_is_refused_by_its_digest(self, peer):
        def publish(digest):
            put = peer.put(TOPIC, producer="anne")
            put.write(payload_batch([b"x"]), first_sequence=1, digest=digest)
            result = put.result()
            if result is None:
                return put.refusal()
            put.close()
            return result["result"]

        assert await call(publish, 2**64 - 1) == "applied"
        assert await call(publish, 2**64 - 1) == "already_applied"
        assert "SINK_NOT_DETERMINISTIC" in await call(publish, 5)

    @pytest.mark.parametrize(
        "numbers",
        [
            {"last_sequence": 5},
            {"digest": 5},
            {"first_sequence": 5, "last_sequence": 4},
            {"first_sequence": -1},
            {"first_sequence": 2**64},
            {"sequence": 1},
        ],
    )
    async def test_numbers_that_make_no_sense_are_refused(self, peer, numbers):
        put = await call(peer.put, TOPIC)
        await call(put.write, payload_batch([b"x"]), **numbers)
        assert await call(put.result) is None
        assert "sequence" in await call(put.refusal)

    async def test_a_producer_without_numbers_has_none(self, peer):
        await call(peer.publish, TOPIC, payload_batch([b"x"]), producer="anne")
        answer = await call(peer.act, "producer", topic=TOPIC, producer="anne")
        assert set(answer.values()) == {None}


async def test_a_rate_holds_the_sender_back_and_loses_nothing(start_broker):
    broker = await start_broker(max_publish_rate=100)
    peer = FlightPeer(broker.server.client_port)
    batches = [payload_batch([b"%d" % number] * 50) for number in range(5)]
    publishing = asyncio.create_task(call(peer.publish, TOPIC, *batches))
    for _ in range(100):
        if publishing.done():
            break
        broker.clock.advance(0.5)
        await asyncio.sleep(0.02)
    results = await publishing
    assert [result["offset"] for result in results] == [0, 50, 100, 150, 200]
    peer.close()


async def test_publishing_goes_on_while_the_journal_is_full(start_broker, monkeypatch):
    broker = await start_broker()
    broker.server._broker._serving.storage._writer._unsynced_bytes_max = 100_000
    peers = [FlightPeer(broker.server.client_port) for _ in range(3)]
    batches = [payload_batch([bytes(1_000)] * 60) for _ in range(20)]
    all_results = await asyncio.gather(*(call(peer.publish, TOPIC, *batches) for peer in peers))
    offsets = sorted(result["offset"] for results in all_results for result in results)
    assert offsets == list(range(0, 60 * 60, 60))
    for peer in peers:
        peer.close()


async def test_an_idle_stream_ends_when_its_topic_does(peer, broker):
    put = await call(peer.put, TOPIC)
    await call(put.write, payload_batch([b"x"]))
    await call(put.result)
    await broker.client().delete_topic(TOPIC)
    assert await call(put.result) is None
    assert "deleted" in await call(put.refusal)


async def test_an_idle_stream_does_not_keep_a_broker_from_stopping(peer, broker):
    put = await call(peer.put, TOPIC)
    await call(put.write, payload_batch([b"x"]))
    await call(put.result)
    started = time.monotonic()
    await broker.stop()
    assert time.monotonic() - started < 3
    assert "stopping" in await call(put.refusal)


async def test_a_handshake_is_refused_politely(peer):
    text = await call(refusal_of, peer.client.authenticate_basic_token, "user", "secret")
    assert "needs no handshake" in text
