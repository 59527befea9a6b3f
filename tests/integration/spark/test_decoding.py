"""Typed values by the registry, read and written as Spark would, without starting it."""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from pydanube.client.schemas import Schemas
from pydanube.errors import InvalidRequest, NotFound
from pydanube.spark import decode, history
from pydanube.spark.data_source import batch_reader, schema_of
from pydanube.spark.options import Access, write_options
from pydanube.spark.registry import ask
from pydanube.spark.sink.frames import check_frame
from pydanube.spark.sink.numbering import TaskIdentity
from pydanube.spark.sink.task import WritingTask
from tests.support.spark_readers import rows_of, schema
from tests.support.spark_topics import Topics

JSON_1 = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["id"],
}
JSON_2 = {**JSON_1, "properties": {**JSON_1["properties"], "amount": {"type": "number"}}}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}


def registry(broker: Any, question: Callable[[Schemas], Awaitable[Any]]) -> Any:
    return ask(Access(urls=(broker.url,)), question)


def bind(broker: Any, topic: str, subject: str) -> None:
    registry(
        broker,
        lambda schemas: schemas.configure_topic(
            topic, subject, policy="none", validate_payloads=False
        ),
    )


def value_schema(broker: Any, **options: str) -> StructType:
    """What Spark makes of the schema it is told; parsing DDL itself takes a session."""
    ddl = schema_of({"url": broker.url, **options})
    assert ", value STRUCT<" in ddl
    fields = {
        "`id`: BIGINT": ("id", "long"),
        "`name`: STRING": ("name", "string"),
        "`amount`: DOUBLE": ("amount", "double"),
    }
    struct = {
        "type": "struct",
        "fields": [_field(name, kind) for words, (name, kind) in fields.items() if words in ddl],
    }
    whole = json.loads(schema().json())
    whole["fields"] += [_field("value", struct), _field("decode_error", "string")]
    return StructType.fromJson(whole)


def _field(name: str, kind: object) -> dict[str, object]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def decoded(broker: Any, **options: str) -> list[dict[str, Any]]:
    reader = batch_reader({"url": broker.url, **options}, value_schema(broker, **options))
    return rows_of(reader)  # type: ignore[arg-type]


def put(topics: Topics, topic: str, payloads: list[bytes], **columns: int) -> None:
    import pyarrow.flight as flight

    table = pa.table(
        {
            "payload": pa.array(payloads, pa.binary()),
            **{name: pa.array([value] * len(payloads)) for name, value in columns.items()},
        }
    )
    writer, results = topics._client.do_put(flight.FlightDescriptor.for_path(topic), table.schema)
    writer.write_table(table)
    results.read()
    writer.close()


@pytest.fixture
def orders(broker, topics, topic):
    """A topic of JSON by a subject with two versions."""
    subject = topic.strip("/").replace("/", "-")
    first = registry(broker, lambda schemas: schemas.register(subject, json.dumps(JSON_1)))
    put(topics, topic, [b'{"id": 1, "name": "a"}', b'{"id": 2}', b"no json"])
    bind(broker, topic, subject)
    version = {"schema_id": first.schema_id, "schema_version": 1}
    put(topics, topic, [b'{"id": 3, "name": "c"}'], **version)
    registry(broker, lambda schemas: schemas.register(subject, json.dumps(JSON_2)))
    put(topics, topic, [b'{"id": 4, "amount": 2.5}'], **{**version, "schema_version": 2})
    return topic


def test_payloads_of_all_versions_become_values_of_one(broker, orders):
    rows = decoded(broker, topic=orders, decode="schema")
    assert [row["value"] and row["value"]["id"] for row in rows] == [1, 2, None, 3, 4]
    assert [row["value"] and row["value"]["amount"] for row in rows] == [None] * 4 + [2.5]
    assert [row["offset"] for row in rows] == list(range(5))
    assert rows[2]["decode_error"]
    assert rows[2]["payload"] == b"no json"
    assert [row["decode_error"] for row in rows if row["offset"] != 2] == [None] * 4


def test_an_older_version_can_be_asked_for(broker, orders):
    rows = decoded(broker, topic=orders, decode="schema", schemaVersion="1")
    assert rows[4]["value"] == {"id": 4, "name": None}


def test_a_bad_payload_can_end_the_read(broker, orders):
    with pytest.raises(InvalidRequest, match="onDecodeError=null"):
        decoded(broker, topic=orders, decode="schema", onDecodeError="fail")


def test_a_topic_without_a_subject_is_refused(broker, topics, topic):
    topics.publish(topic, range(3))
    with pytest.raises(InvalidRequest, match="bound to no subject"):
        schema_of({"url": broker.url, "topic": topic, "decode": "schema"})


def test_columns_become_avro_and_values_again(broker, topics, topic):
    subject = topic.strip("/").replace("/", "-")
    registry(broker, lambda schemas: schemas.register(subject, json.dumps(AVRO), "avro"))
    options = write_options(
        {"url": broker.url, "topic": topic, "encode": "avro", "schemaSubject": subject},
        streaming=True,
    )
    columns = check_frame([("id", "bigint"), ("name", "string")], options)
    rows = pa.record_batch({"id": [1, 2], "name": ["a", None]})
    task = WritingTask(options, columns, TaskIdentity(owner="spark/q", epoch=0, task=0))
    assert task.run(iter([rows])).stored == 2
    bind(broker, topic, subject)
    found = decoded(broker, topic=topic, decode="schema")
    assert [row["value"] for row in found] == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    assert {row["schema_version"] for row in found} == {1}


PROTO = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  enum Kind { NONE = 0; SALE = 1; }
  message Line { string item = 1; uint64 count = 2; }
  int64 id = 1;
  optional string name = 2;
  Kind kind = 3;
  repeated Line lines = 4;
  map<string, int64> totals = 5;
  google.protobuf.Timestamp at = 6;
}
"""


def encoded(broker: Any, topic: str, subject: str, rows: pa.RecordBatch, **options: str) -> int:
    given = {"url": broker.url, "topic": topic, "schemaSubject": subject, **options}
    parsed = write_options(given, streaming=True)
    columns = check_frame([(name, "string") for name in rows.schema.names], parsed)
    task = WritingTask(parsed, columns, TaskIdentity(owner="spark/q", epoch=0, task=0))
    return task.run(iter([rows])).stored


def test_columns_become_protobuf_and_values_again(spark, broker, topics, topic):
    subject = topic.strip("/").replace("/", "-")
    registry(broker, lambda schemas: schemas.register(subject, PROTO, "protobuf"))
    rows = [
        {
            "id": 1,
            "name": "a",
            "kind": "SALE",
            "lines": [{"item": "x", "count": 2**63}],
            "totals": [("net", 5)],
            "at": datetime(2026, 11, 15, 8, 30, tzinfo=UTC),
        },
        {"id": 2, "name": None, "kind": "NONE", "lines": [], "totals": [], "at": None},
    ]
    kinds = pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.utf8()),
            ("kind", pa.utf8()),
            ("lines", pa.list_(pa.struct([("item", pa.utf8()), ("count", pa.decimal128(20, 0))]))),
            ("totals", pa.map_(pa.utf8(), pa.int64())),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
    batch = pa.RecordBatch.from_pylist(rows, kinds)
    assert encoded(broker, topic, subject, batch, encode="protobuf") == 2
    bind(broker, topic, subject)
    frame = spark.read.format("danube").options(url=broker.url, topic=topic, decode="schema").load()
    found = [row.value.asDict(recursive=True) for row in frame.orderBy("offset").collect()]
    for value, row in zip(found, rows, strict=True):
        assert value["totals"] == dict(row["totals"])
        assert value["at"] == (row["at"] and row["at"].replace(tzinfo=None))
        names = ("id", "name", "kind", "lines")
        assert {name: value[name] for name in names} == {name: row[name] for name in names}


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [("colour", "red", "is no field of Order"), ("kind", "LOAN", "not what Order describes")],
)
def test_rows_that_are_no_such_message_are_refused(broker, topics, topic, column, value, words):
    subject = topic.strip("/").replace("/", "-")
    registry(broker, lambda schemas: schemas.register(subject, PROTO, "protobuf"))
    batch = pa.record_batch({"id": [1], column: [value]})
    with pytest.raises(InvalidRequest, match=words):
        encoded(broker, topic, subject, batch, encode="protobuf")
    with pytest.raises(InvalidRequest, match="is protobuf; encode by that"):
        encoded(broker, topic, subject, batch, encode="avro")


class TestDecodedFrames:
    """`decode`: any frame with payloads."""

    def test_a_frame_gets_values_by_a_subject(self, spark, broker, orders):
        frame = history(spark, orders, url=broker.url).where("offset != 1")
        subject = orders.strip("/").replace("/", "-")
        found = sorted(decode(frame, subject, url=broker.url).collect())
        assert [row.value and row.value.id for row in found] == [1, None, 3, 4]
        assert [row.value and row.value.amount for row in found] == [None, None, None, 2.5]
        assert [bool(row.decode_error) for row in found] == [False, True, False, False]
        old = decode(frame.select("offset", "payload"), subject, 1, url=broker.url)
        assert old.columns == ["offset", "payload", "value", "decode_error"]
        assert sorted(old.schema["value"].dataType.fieldNames()) == ["id", "name"]
        assert {row.value.name for row in old.collect() if row.value} == {"a", "c", None}

    def test_a_bad_payload_can_fail_the_job(self, spark, broker, orders):
        frame = history(spark, orders, url=broker.url)
        subject = orders.strip("/").replace("/", "-")
        with pytest.raises(PySparkException, match="on_error=null"):
            decode(frame, subject, on_error="fail", url=broker.url).collect()

    def test_a_frame_that_cannot_be_decoded_is_refused_at_once(self, spark, broker, orders):
        subject = orders.strip("/").replace("/", "-")
        with pytest.raises(InvalidRequest, match="binary column payload"):
            decode(spark.range(1), subject, url=broker.url)
        with pytest.raises(NotFound):
            decode(history(spark, orders, url=broker.url), "nobody", url=broker.url)
