"""What schemas cost: validating and decoding a message, alone on one core, in batches of 1,000.

Run with `python -m benchmarks.schemas`. Process time is counted, the best of many rounds.
"""

import io
import json
import time
from collections.abc import Callable
from typing import Any

import fastavro
import orjson
import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass

from benchmarks.machine import describe_machine
from pydanube.runtime.protobuf_compiler import ProcessProtobufCompiler
from pydanube.schemas.catalog import load_format
from pydanube.schemas.compatibility import check
from pydanube.schemas.format import Schema, SchemaTools

ROWS = 1_000
ROUNDS = 30

JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"type": "string", "minLength": 1},
        "amount": {"type": "number", "minimum": 0},
        "currency": {"enum": ["EUR", "USD"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "note": {"type": ["string", "null"]},
        "paid": {"type": "boolean"},
    },
    "required": ["id", "customer", "amount"],
    "additionalProperties": False,
}
AVRO_SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "currency", "type": {"type": "enum", "name": "C", "symbols": ["EUR", "USD"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "paid", "type": "boolean"},
    ],
}
PROTOBUF_SCHEMA = """syntax = "proto3";
message Order {
  int64 id = 1;
  string customer = 2;
  double amount = 3;
  Currency currency = 4;
  repeated string tags = 5;
  optional string note = 6;
  bool paid = 7;
}
enum Currency { EUR = 0; USD = 1; }
"""


def orders() -> list[dict[str, Any]]:
    return [
        {
            "id": 1_000_000 + number,
            "customer": f"customer-{number}",
            "amount": number / 3,
            "currency": "EUR",
            "tags": ["new", "web"],
            "note": None if number % 2 else "leave it at the door",
            "paid": True,
        }
        for number in range(ROWS)
    ]


def avro_payloads() -> list[bytes]:
    spec = fastavro.parse_schema(AVRO_SCHEMA)
    payloads = []
    for order in orders():
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, spec, order)
        payloads.append(buffer.getvalue())
    return payloads


def microseconds(work: Callable[[], object]) -> float:
    """Return the time of one row when `work` takes a batch."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best / ROWS * 1e6


def measure(name: str, schema: Schema, payloads: list[bytes], parse: Callable[[], object]) -> None:
    column = pa.array(payloads, pa.binary())
    validator = schema.validator()
    assert validator.failures(payloads) == []
    assert schema.decode(payloads).failures == []
    listed = microseconds(lambda: validator.failures(payloads))
    in_column = microseconds(lambda: validator.failures(column))
    decoded = microseconds(lambda: schema.decode(column))
    parsed = microseconds(parse)
    size = sum(map(len, payloads)) // ROWS
    print(
        f"| {name} | {size} | {parsed:.2f} | {listed:.2f} | {in_column:.2f} | {decoded:.2f} |",
        flush=True,
    )


def milliseconds_to_parse(format_name: str, definition: bytes, tools: SchemaTools) -> float:
    rules = load_format(format_name, tools)
    rules.parse(definition)
    started = time.perf_counter()
    for _ in range(10):
        rules.parse(definition)
    return (time.perf_counter() - started) * 100


def milliseconds_to_check(schema: Schema, later: Schema) -> float:
    started = time.perf_counter()
    for _ in range(100):
        check("full", later, [schema])
    return (time.perf_counter() - started) * 10


def main() -> None:
    tools = SchemaTools(protobuf_compiler=ProcessProtobufCompiler())
    definitions = {
        "json_schema": orjson.dumps(JSON_SCHEMA),
        "avro": orjson.dumps(AVRO_SCHEMA),
        "protobuf": PROTOBUF_SCHEMA.encode(),
    }
    schemas: dict[str, Any] = {
        name: load_format(name, tools).parse(definition) for name, definition in definitions.items()
    }
    json_rows = [orjson.dumps(order) for order in orders()]
    avro_rows = avro_payloads()
    message = GetMessageClass(schemas["protobuf"].descriptor)
    protobuf_rows = [message(**order).SerializeToString() for order in orders()]
    spec = fastavro.parse_schema(json.loads(schemas["avro"].canonical))

    print(f"{describe_machine()}; microseconds of CPU a message, batches of {ROWS:,}\n")
    print("| format | bytes | parse alone | validate, list | validate, column | decode, column |")
    print("|---|---|---|---|---|---|")
    measure(
        "json_schema", schemas["json_schema"], json_rows, lambda: [*map(orjson.loads, json_rows)]
    )
    measure(
        "avro",
        schemas["avro"],
        avro_rows,
        lambda: [fastavro.schemaless_reader(io.BytesIO(row), spec, None) for row in avro_rows],
    )
    measure(
        "protobuf",
        schemas["protobuf"],
        protobuf_rows,
        lambda: [*map(message.FromString, protobuf_rows)],
    )
    print("\n| format | register: parse, ms | full check, ms |")
    print("|---|---|---|")
    later = {
        "json_schema": definitions["json_schema"].replace(b'"paid"', b'"settled"'),
        "avro": definitions["avro"].replace(b'"paid"', b'"settled"'),
        "protobuf": definitions["protobuf"].replace(b"bool paid", b"bool settled"),
    }
    for name, schema in schemas.items():
        parse = milliseconds_to_parse(name, definitions[name], tools)
        judged = milliseconds_to_check(schema, load_format(name, tools).parse(later[name]))
        print(f"| {name} | {parse:.2f} | {judged:.2f} |", flush=True)


if __name__ == "__main__":
    main()
