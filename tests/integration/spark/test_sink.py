"""What writing tasks store, also when they are repeated; run as Spark runs them, without it."""

import json

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from pydanube.errors import Conflict, InvalidRequest, Unavailable
from pydanube.spark.brokers import Patience
from pydanube.spark.options import write_options
from pydanube.spark.sink.frames import check_frame
from pydanube.spark.sink.numbering import TaskIdentity
from pydanube.spark.sink.publishing import TopicPublisher
from pydanube.spark.sink.task import TaskResult, WritingTask
from pydanube.testing.broker import Broker
from pydanube.wire.flight.descriptors import MemoryPlace
from pydanube.wire.flight.handing_over import MEMORY_BYTES, HandedOver
from tests.support.spark_topics import create_partitions, numbers_of, payload

TYPES = {
    "payload": "binary",
    "routing_key": "string",
    "topic": "string",
    "n": "bigint",
    "p": "string",
}


SHORT, LONG = 0, 8192
"""How many blanks follow a payload: chunks of fifty long ones lie in shared memory."""
either_way = pytest.mark.parametrize("blanks", [SHORT, LONG])


def rows(*bounds: int, blanks: int = SHORT, **columns: list) -> pa.RecordBatch:
    payloads = [payload(number) + b" " * blanks for number in range(*bounds)]
    given = {"payload": pa.array(payloads, pa.binary())}
    return pa.record_batch({**given, **{name: pa.array(each) for name, each in columns.items()}})


def write(
    broker: Broker,
    topic: str | None,
    *batches: pa.RecordBatch,
    epoch: int = 0,
    task: int = 0,
    owner: str = "spark/q",
    **options: object,
) -> TaskResult:
    given = {"url": broker.url, **{name: str(value) for name, value in options.items()}}
    if topic is not None:
        given["topic"] = topic
    parsed = write_options(given, streaming=True)
    columns = check_frame([(name, TYPES[name]) for name in batches[0].schema.names], parsed)
    identity = TaskIdentity(owner=owner, epoch=epoch, task=task)
    return WritingTask(parsed, columns, identity).run(iter(batches))


@either_way
def test_a_task_stores_its_rows_in_order(broker, topics, topic, blanks):
    done = write(
        broker, topic, rows(0, 300, blanks=blanks), rows(300, 1000, blanks=blanks), batchRows=64
    )
    assert done == TaskResult(rows=1000, stored=1000, repeated=0)
    assert topics.numbers(topic) == list(range(1000))


@either_way
def test_a_task_that_runs_twice_adds_nothing(broker, topics, topic, blanks):
    write(broker, topic, rows(0, 1000, blanks=blanks), batchRows=64)
    # A twin, whose batches came in other sizes.
    done = write(
        broker,
        topic,
        rows(0, 10, blanks=blanks),
        rows(10, 999, blanks=blanks),
        rows(999, 1000, blanks=blanks),
        batchRows=64,
    )
    assert done == TaskResult(rows=1000, stored=1000, repeated=1000)
    assert topics.numbers(topic) == list(range(1000))


@either_way
def test_a_zombie_that_wakes_a_batch_later_adds_nothing(broker, topics, topic, blanks):
    write(broker, topic, rows(0, 100, blanks=blanks))
    write(broker, topic, rows(100, 200, blanks=blanks), epoch=1)
    assert write(broker, topic, rows(0, 100, blanks=blanks)).repeated == 100
    assert topics.numbers(topic) == list(range(200))


def test_a_task_that_died_half_way_is_completed(broker, topics, topic):
    write(broker, topic, rows(0, 100), batchRows=10)
    done = write(broker, topic, rows(0, 250), batchRows=10)
    assert (done.repeated, done.stored) == (100, 250)
    assert topics.numbers(topic) == list(range(250))


@either_way
def test_what_overlaps_is_cut(broker, topics, topic, blanks):
    write(broker, topic, rows(0, 100, blanks=blanks), batchRows=100)
    done = write(broker, topic, rows(0, 250, blanks=blanks), batchRows=70)
    assert (done.repeated, done.stored) == (100, 250)
    assert topics.numbers(topic) == list(range(250))


@either_way
def test_an_overlap_whose_answer_was_overtaken_by_more_rows_is_cut(broker, topics, topic, blanks):
    """A write to a stream that has ended makes Flight forget the answers that wait there."""
    write(broker, topic, rows(0, 100, blanks=blanks), batchRows=100)
    done = write(broker, topic, rows(0, 2000, blanks=blanks), batchRows=70, inFlight=64)
    assert (done.repeated, done.stored) == (100, 2000)
    assert topics.numbers(topic) == list(range(2000))


def test_long_chunks_lie_in_memory_that_is_used_again(broker, topics, topic, monkeypatch):
    places = []
    put = HandedOver.put

    def note(self: HandedOver, chunk: pa.RecordBatch) -> MemoryPlace | None:
        places.append(put(self, chunk))
        return places[-1]

    monkeypatch.setattr(HandedOver, "put", note)
    for epoch in range(10):
        write(broker, topic, rows(0, 800, blanks=LONG), epoch=epoch, batchRows=100)
    assert None not in places
    written = sum(place.length for place in places)
    assert written > MEMORY_BYTES, "the memory was not used twice"
    assert topics.numbers(topic) == list(range(800)) * 10


def test_tasks_and_batches_are_told_apart(broker, topics, topic):
    for epoch in range(2):
        for task in range(2):
            write(broker, topic, rows(0, 10), epoch=epoch, task=task)
    assert sorted(topics.numbers(topic)) == sorted(list(range(10)) * 4)


def test_a_repeat_with_other_rows_is_an_error(broker, topics, topic):
    write(broker, topic, rows(0, 100))
    with pytest.raises(InvalidRequest, match="SINK_NOT_DETERMINISTIC"):
        write(broker, topic, rows(1, 101))
    assert topics.numbers(topic) == list(range(100))


def test_sorted_rows_are_the_same_in_whatever_order_they_come(broker, topics, topic):
    shuffled = rows(0, 100).take(pa.array(list(range(50, 100)) + list(range(50))))
    write(broker, topic, rows(0, 100), order="sorted")
    assert write(broker, topic, shuffled, order="sorted").repeated == 100
    assert sorted(topics.numbers(topic)) == list(range(100))


def test_without_numbers_a_repeat_is_stored_again(broker, topics, topic):
    for _ in range(2):
        write(broker, topic, rows(0, 10), guarantee="at_least_once")
    assert sorted(topics.numbers(topic)) == sorted(list(range(10)) * 2)


def test_rows_of_a_partitioned_topic_go_by_key_or_in_turns(broker, topics, topic):
    create_partitions(broker, topic, 3)
    keys = [f"key-{number % 5}" if number % 2 else None for number in range(60)]
    for _ in range(2):
        done = write(broker, topic, rows(0, 60, routing_key=keys))
    assert done.repeated == 60
    by_partition = [topics.numbers(f"{topic}-part-{number}") for number in range(3)]
    assert sorted(each for held in by_partition for each in held) == list(range(60))
    for number, held in enumerate(by_partition):
        assert all(each % 3 == number for each in held if each % 2 == 0)
    for key in range(5):
        places = [
            number
            for number, held in enumerate(by_partition)
            if any(each % 2 and each % 5 == key for each in held)
        ]
        assert len(places) == 1, "a key went to two partitions"


def test_a_column_can_say_where_rows_go(broker, topics, topic):
    names = [f"{topic}-{number % 2}" for number in range(10)]
    write(broker, None, rows(0, 10, topic=names))
    assert topics.numbers(f"{topic}-0") == [0, 2, 4, 6, 8]
    assert topics.numbers(f"{topic}-1") == [1, 3, 5, 7, 9]


def test_numbers_can_come_from_the_data(broker, topics, topic):
    given = {"producerColumn": "p", "sequenceColumn": "n"}
    first = rows(0, 10, p=["kafka/0"] * 10, n=list(range(0, 100, 10)))
    write(broker, topic, first, **given)
    # Another query, another cut: the data say what is known already.
    both = rows(0, 20, p=["kafka/0"] * 20, n=list(range(0, 200, 10)))
    done = write(broker, topic, both, owner="spark/other", task=5, **given)
    assert done.repeated == 10
    assert topics.numbers(topic) == list(range(20))
    with pytest.raises(InvalidRequest, match="does not grow"):
        write(broker, topic, rows(0, 2, p=["kafka/1"] * 2, n=[5, 5]), **given)


@either_way
def test_a_lost_connection_loses_and_repeats_nothing(broker, topics, topic, monkeypatch, blanks):
    taken = TopicPublisher._take_answer
    answers = []

    def forget_the_third(self: TopicPublisher) -> None:
        answers.append(1)
        if len(answers) == 3:
            self._reopen()  # As after a cut: nobody knows what became of what is under way.
        taken(self)

    monkeypatch.setattr(TopicPublisher, "_take_answer", forget_the_third)
    done = write(broker, topic, rows(0, 1000, blanks=blanks), batchRows=50, inFlight=4)
    assert done.stored == 1000
    assert done.repeated > 0
    assert topics.numbers(topic) == list(range(1000))


def test_a_topic_that_keeps_nothing_is_refused(broker, topics, topic):
    client = flight.connect(broker.url.replace("http://", "grpc://"))
    command = json.dumps({"topic": topic, "dispatch": "non_reliable"}).encode()
    writer, results = client.do_put(
        flight.FlightDescriptor.for_command(command), pa.schema([("payload", pa.binary())])
    )
    writer.write_batch(rows(0, 1))
    results.read()
    writer.close()
    with pytest.raises((Conflict, InvalidRequest)):
        write(broker, topic, rows(0, 10))


def test_payloads_can_be_text(broker, topics, topic):
    texts = pa.record_batch({"payload": ['{"number": 1}', '{"number": 2}']})
    parsed = write_options({"url": broker.url, "topic": topic}, streaming=True)
    columns = check_frame([("payload", "string")], parsed)
    WritingTask(parsed, columns, TaskIdentity(owner="spark/t", epoch=0, task=0)).run(iter([texts]))
    assert topics.numbers(topic) == numbers_of([payload(1), payload(2)])


def test_a_broker_that_is_not_there_is_reported_after_a_while(topic, monkeypatch):
    short = Patience(give_up_seconds=0.5, first_pause_seconds=0.05, last_pause_seconds=0.1)
    monkeypatch.setattr("pydanube.spark.brokers.Patience", lambda: short)
    nowhere = write_options({"url": "http://127.0.0.1:1", "topic": topic}, streaming=True)
    columns = check_frame([("payload", "binary")], nowhere)
    task = WritingTask(nowhere, columns, TaskIdentity(owner="spark/t", epoch=0, task=0))
    with pytest.raises(Unavailable, match="gave up after"):
        task.run(iter([rows(0, 1)]))
