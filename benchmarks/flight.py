"""Prints the rates of Arrow Flight: DoPut (durable), DoGet and DoExchange, by rows per batch.

python -m benchmarks.flight [--engine http2|grpcio] [--quick] [--data-dir DIR]

The broker and the client, which is pyarrow's own, are processes of their own.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.machine import describe_machine
from pydanube.model.batch import SCHEMA
from tests.support.broker_process import BrokerProcess

TOPIC = "/default/flight-bench"
PAYLOAD_BYTES = 1024
BATCH_ROWS = {1: 10_000, 64: 4_000, 1_000: 600}
"""Batches per figure, by rows per batch."""


# The client's process.


def batch_of(rows: int) -> pa.RecordBatch:
    payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(rows)]
    now_ms = int(time.time() * 1000)
    columns = {
        "publish_time": pa.array([now_ms] * rows, pa.int64()),
        "producer_name": pa.array(["bench"] * rows),
        "payload": pa.array(payloads, pa.binary()),
    }
    return pa.RecordBatch.from_arrays(
        [columns.get(each.name, pa.nulls(rows, each.type)) for each in SCHEMA], schema=SCHEMA
    )


def do_put(client: flight.FlightClient, topic: str, rows: int, batches: int) -> float:
    batch = batch_of(rows)
    started = time.perf_counter()
    writer, results = client.do_put(flight.FlightDescriptor.for_path(topic), SCHEMA)

    def read_results() -> None:
        for _ in range(batches):
            assert results.read() is not None, "the broker refused a batch"

    reading = threading.Thread(target=read_results)
    reading.start()
    for _ in range(batches):
        writer.write_batch(batch)
    reading.join()
    seconds = time.perf_counter() - started
    writer.close()
    return seconds


def do_get(client: flight.FlightClient, topic: str, rows: int, batches: int) -> float:
    started = time.perf_counter()
    read = sum(chunk.data.num_rows for chunk in client.do_get(flight.Ticket(topic.encode())))
    assert read == rows * batches
    return time.perf_counter() - started


def do_exchange(client: flight.FlightClient, topic: str, rows: int, batches: int) -> float:
    command = {
        "topic": topic,
        "subscription": "bench",
        "consumer": "bench",
        "type": "exclusive",
        "start_position": "earliest",
        "credit": 10_000,
    }
    started = time.perf_counter()
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
    writer, reader = client.do_exchange(descriptor)
    read = unsaid = 0
    while read < rows * batches:
        count = reader.read_chunk().data.num_rows
        read += count
        unsaid += count
        if unsaid >= 2_000 or read == rows * batches:
            writer.write_metadata(json.dumps({"ack_until": read, "credit": unsaid}).encode())
            unsaid = 0
    writer.write_metadata(b'{"id": 1}')
    assert reader.read_chunk().app_metadata == b'{"acked":1}'
    seconds = time.perf_counter() - started
    writer.close()
    return seconds


CALLS = {"DoPut": do_put, "DoGet": do_get, "DoExchange": do_exchange}


def serve_calls(url: str) -> None:
    """Make the calls that are asked for on standard input, and print their seconds."""
    client = flight.connect(url.replace("http://", "grpc://"))
    for line in sys.stdin:
        name, topic, rows, batches = json.loads(line)
        print(CALLS[name](client, topic, rows, batches), flush=True)


# The process that measures.


class Client:
    """The client's process, told what to do."""

    def __init__(self, url: str) -> None:
        self.process = psutil.Popen(
            [sys.executable, "-m", "benchmarks.flight", "--client", url],
            stdin=-1,
            stdout=-1,
            text=True,
        )

    def call(self, name: str, topic: str, rows: int, batches: int) -> float:
        self.process.stdin.write(json.dumps([name, topic, rows, batches]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the client failed at {name} with {rows} rows per batch")
        return float(answer)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)


def measure(engine: str, scale: float, root: Path) -> None:
    print(f"{describe_machine()}; engine {engine}; 1 KiB payloads; one stream; fsync\n")
    print("| call | rows per batch | msg/s | MiB/s | batches/s | broker CPU us per batch |")
    print("|---|---|---|---|---|---|")
    directory = Path(tempfile.mkdtemp(dir=root))
    try:
        with BrokerProcess(directory / "data", engine=engine) as broker:
            client = Client(broker.url)
            process = psutil.Process(broker.pid)
            for rows, full in BATCH_ROWS.items():
                batches = max(50, int(full * scale))
                topic = f"{TOPIC}-{rows}"
                for name in CALLS:
                    before = process.cpu_times()
                    seconds = client.call(name, topic, rows, batches)
                    after = process.cpu_times()
                    cpu = after.user + after.system - before.user - before.system
                    rate = rows * batches / seconds
                    print(
                        f"| {name} | {rows:,} | {rate:,.0f} | {rate * PAYLOAD_BYTES / 2**20:,.0f} "
                        f"| {batches / seconds:,.0f} | {cpu / batches * 1e6:,.0f} |",
                        flush=True,
                    )
            client.close()
    finally:
        shutil.rmtree(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["http2", "grpcio"], default="http2")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is not None:
        serve_calls(options.client)
    else:
        measure(options.engine, 0.1 if options.quick else 1.0, options.data_dir or Path.cwd())


if __name__ == "__main__":
    main()
