"""Typed values by the registry, read and written as Spark would, without starting it."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pydanube.client.schemas import Schemas
from pydanube.errors import InvalidRequest
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
