"""What a writing task does: turn its rows into numbered messages and publish them."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.client.schema_calls import SchemaVersion
from pydanube.errors import InvalidRequest, NotFound
from pydanube.model.names import check_client_name, check_topic_name
from pydanube.runtime.clock import SystemClock
from pydanube.spark.brokers import Brokers, brokers_of
from pydanube.spark.options import WriteOptions
from pydanube.spark.registry import latest_schema, parse_schema
from pydanube.spark.sink.encoding import Encode, avro_payloads, json_payloads, protobuf_payloads
from pydanube.spark.sink.frames import (
    Chunker,
    FrameColumns,
    messages_of,
    partitions_for,
    sort_rows,
    split_by_topic,
)
from pydanube.spark.sink.numbering import TaskIdentity
from pydanube.spark.sink.publishing import Numbers, TopicPublisher
from pydanube.wire.flight.descriptors import PlanCommand, PublishCommand

_ROW = "danube_row"
"""The column of a row's number in its task, where its partition may depend on it."""
_SEQUENCE = "danube_sequence"
"""The column of a row's own number, where the data gives it."""


class TaskResult(Struct, frozen=True, kw_only=True):
    """What became of a task's rows."""

    rows: int
    stored: int
    repeated: int


class WritingTask:
    """Writes the rows of one task. `identity` None: rows are not numbered."""

    def __init__(
        self, options: WriteOptions, columns: FrameColumns, identity: TaskIdentity | None
    ) -> None:
        self._options = options
        self._columns = columns
        self._identity = identity
        self._brokers: Brokers = brokers_of(options.access)
        self._partitions: dict[str, list[str]] = {}
        self._flows: dict[tuple[str, str], _Flow] = {}
        self._rows = 0
        self._written_by: SchemaVersion | None = None
        self._encode: Encode = json_payloads
        if options.encode in ("avro", "protobuf"):
            self._written_by, self._encode = _encoding(options)

    def run(self, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        """Publish everything; returns once all of it is durable."""
        for batch in self._ordered(batches):
            if batch.num_rows:
                self._take(batch)
        for flow in self._flows.values():
            flow.finish()
        return TaskResult(
            rows=self._rows,
            stored=sum(flow.publisher.stored for flow in self._flows.values()),
            repeated=sum(flow.publisher.repeated for flow in self._flows.values()),
        )

    def _ordered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self._options.order == "input":
            return batches
        rows = list(batches)
        if not rows:
            return iter(())
        return iter(sort_rows(pa.Table.from_batches(rows)).to_batches())

    def _take(self, batch: pa.RecordBatch) -> None:
        first = self._rows
        self._rows += batch.num_rows
        topic = self._options.topic
        if topic is None or len(self._physical(topic)) > 1:
            numbers = pa.arange(first, first + batch.num_rows)
            batch = batch.append_column(_ROW, numbers)
        for producer, own in self._by_producer(batch):
            for topic, rows in split_by_topic(own, self._options.topic):
                for physical, part in self._by_partition(topic, rows):
                    self._flow(physical, producer).take(part)

    def _by_producer(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        column = self._options.producer_column
        if column is None:
            yield self._identity.producer if self._identity is not None else "spark", batch
            return
        names = batch.column(column)
        if names.null_count or batch.column(self._options.sequence_column).null_count:
            raise InvalidRequest(
                f"columns {column} and {self._options.sequence_column} number the rows, and some "
                "of them are null"
            )
        for name in pc.unique(names).to_pylist():
            check_client_name("producer", str(name))
            yield str(name), batch.filter(pc.equal(names, name))

    def _by_partition(
        self, topic: str, rows: pa.RecordBatch
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        partitions = self._physical(topic)
        if len(partitions) == 1:
            yield partitions[0], rows
            return
        keys = rows.column("routing_key") if "routing_key" in rows.schema.names else None
        chosen = partitions_for(keys, rows.column(_ROW), len(partitions))
        for number, physical in enumerate(partitions):
            part = rows.filter(pc.equal(chosen, number))
            if part.num_rows:
                yield physical, part

    def _physical(self, topic: str) -> list[str]:
        known = self._partitions.get(topic)
        if known is None:
            check_topic_name(topic)
            try:
                command = PlanCommand(topic=topic, from_="latest")
                known = self._brokers.call(lambda broker: broker.plan(command)).notes.partitions
            except NotFound:
                known = [topic]  # The first batch creates it, if the broker allows.
            self._partitions[topic] = known
        return known

    def _messages(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of messages; encoded ones name their schema."""
        messages = messages_of(rows, self._columns, self._encode)
        if self._written_by is None:
            return messages
        named = {
            "schema_id": self._written_by.schema_id,
            "schema_version": self._written_by.version,
        }
        for name, number in named.items():
            if name not in messages.schema.names:
                column = pa.repeat(pa.scalar(number, pa.int64()), messages.num_rows)
                messages = messages.append_column(name, column)
        return messages

    def _flow(self, physical: str, producer: str) -> "_Flow":
        flow = self._flows.get((physical, producer))
        if flow is None:
            numbered = self._options.guarantee == "exactly_once"
            command = PublishCommand(topic=physical, producer=producer, dispatch="reliable")
            publisher = TopicPublisher(
                self._brokers, command, self._options.in_flight, SystemClock().now_ms
            )
            identity = self._identity if numbered else None
            flow = _Flow(publisher, self._options, self._messages, identity)
            self._flows[physical, producer] = flow
        return flow


def _encoding(options: WriteOptions) -> tuple[SchemaVersion, Encode]:
    """Return the latest schema of the subject, and what encodes rows by it."""
    assert options.schema_subject is not None, "options were checked"
    found = latest_schema(options.access, options.schema_subject)
    if found.schema_type != options.encode:
        raise InvalidRequest(
            f"option encode is {options.encode}, and subject {options.schema_subject} is "
            f"{found.schema_type}; encode by that, or name another subject with schemaSubject"
        )
    if options.encode == "avro":
        return found, avro_payloads(found.definition)
    return found, protobuf_payloads(parse_schema(found.schema_type, found.definition))


class _Flow:
    """The rows of one task for one physical topic and one producer."""

    def __init__(
        self,
        publisher: TopicPublisher,
        options: WriteOptions,
        messages: Callable[[pa.RecordBatch], pa.RecordBatch],
        identity: TaskIdentity | None,
    ) -> None:
        self.publisher = publisher
        self._options = options
        self._messages = messages
        self._identity = identity
        self._chunker = Chunker(options.batch_rows, options.batch_bytes)
        self._count = 0
        self._last: int | None = None

    def take(self, rows: pa.RecordBatch) -> None:
        messages = self._messages(rows)
        if self._identity is not None and self._options.sequence_column is not None:
            numbers = self._given_numbers(rows, self._options.sequence_column)
            messages = messages.append_column(_SEQUENCE, numbers)
        for chunk in self._chunker.add(messages):
            self._send(chunk)

    def _given_numbers(self, rows: pa.RecordBatch, column: str) -> pa.Array:
        numbers = rows.column(column).cast(pa.int64())
        last = pa.array([-1 if self._last is None else self._last], pa.int64())
        before = pa.concat_arrays([last, numbers[:-1]])
        if not pc.all(pc.greater(numbers, before)).as_py():
            raise InvalidRequest(
                f"column {column} numbers the rows, and does not grow from row to row within a "
                "task; read with splitPartitions=false, and keep the order of the source"
            )
        self._last = numbers[-1].as_py()
        return numbers

    def finish(self) -> None:
        rest = self._chunker.rest()
        if rest is not None:
            self._send(rest)
        self.publisher.finish()

    def _send(self, chunk: pa.RecordBatch) -> None:
        numbers = None
        if _SEQUENCE in chunk.schema.names:
            numbers = Numbers.given(chunk.column(_SEQUENCE))
            chunk = chunk.drop_columns([_SEQUENCE])
        elif self._identity is not None:
            first = self._identity.sequence(self._count)
            self._count += chunk.num_rows
            numbers = Numbers(first, self._identity.sequence(self._count - 1))
        self.publisher.send(chunk, numbers)
