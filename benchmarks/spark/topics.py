"""Topics of 1 KiB messages that `benchmarks.spark` reads, writes and follows."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

from tests.support.spark_topics import Topics

PAYLOAD_BYTES = 1024
BATCH_ROWS = 1_000
DIFFERENT_BATCHES = 50
TOPIC = "/default/bench"
KEYED = "/default/bench-keyed"
TARGET = "/default/bench-out"


def payload_batches() -> list[pa.RecordBatch]:
    """Messages that compress about as well as JSON does."""
    words = [bytes(random.choices(b"abcdefghij0123456789", k=32)) for _ in range(4_000)]

    def batch() -> pa.RecordBatch:
        payloads = [
            b"".join(random.choices(words, k=PAYLOAD_BYTES // 32)) for _ in range(BATCH_ROWS)
        ]
        return pa.record_batch({"payload": pa.array(payloads, pa.binary())})

    return [batch() for _ in range(DIFFERENT_BATCHES)]


def keyed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same payloads with what messages have beside them: a key, a type and a trace."""
    rows = range(batch.num_rows)
    keys = [f"customer-{random.randrange(10_000)}" for _ in rows]
    attributes = [
        [("content-type", "application/json"), ("trace", f"{random.getrandbits(64):016x}")]
        for _ in rows
    ]
    return batch.append_column("routing_key", pa.array(keys, pa.utf8())).append_column(
        "attributes", pa.array(attributes, pa.map_(pa.utf8(), pa.utf8()))
    )


def fill(url: str, topic: str, batches: list[pa.RecordBatch], rows: int) -> None:
    """Publish so many messages."""
    client = flight.connect(url.replace("http://", "grpc://"))
    writer, results = client.do_put(flight.FlightDescriptor.for_path(topic), batches[0].schema)
    for number in range(rows // BATCH_ROWS):
        writer.write_batch(batches[number % len(batches)])
        results.read()
    writer.close()


def segment_files(url: str, topic: str) -> list[str]:
    """Wait until a topic is sealed; return where its segments lie."""
    topics = Topics(url)
    keys = {key for _, _, key in topics.wait_sealed(topic) if key}
    root = Path(topics.store(topic).removeprefix("file://"))
    topics.close()
    return [f"file://{root / key}" for key in sorted(keys)]
