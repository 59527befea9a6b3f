"""A sink that does little more than store: rows of Spark's tasks to a process that syncs them.

python -m benchmarks.spark.bare FILE      the process: prints its port, serves until killed

It takes the memory of Arrow batches over TCP as it is, writes it to the file, syncs, and answers
when a batch is durable. It knows no topics, offsets, numbers or checksums, and looks at nothing:
what a topic costs beyond this is what a broker and its client add to Spark, the kernel and the
disk. Batches of all connections that wait are written together and share one sync. It is no proof
of what is possible: it is Python, too, and sends columns that a topic leaves out.

Without a port, `format("bare")` throws batches away in Spark's workers: what any sink costs that is
written in Python, before it does something.
"""

import contextlib
import os
import queue
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from typing_extensions import override

IN_FLIGHT = 8
"""Batches that a task has sent and does not know to be durable: the default of `inFlight`."""
CACHED_BYTES = 256 * 1024 * 1024
"""What stays in the system's file cache: the default of `storage.journal_cache_bytes_max`."""

_LENGTH = struct.Struct("<Q")
_DURABLE = b"."

Received = tuple[socket.socket, memoryview]


class BareSource(DataSource):
    """`format("bare")`, with the option `port`, or without it."""

    @classmethod
    @override
    def name(cls) -> str:
        return "bare"

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        port = self.options.get("port")
        return DiscardingWriter() if port is None else BareWriter(int(port))


class DiscardingWriter(DataSourceArrowWriter):
    """Takes batches, and that is all."""

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class BareWriter(DataSourceArrowWriter):
    """Sends batches as they come."""

    def __init__(self, port: int) -> None:
        self._port = port

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        waiting = 0
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            for batch in iterator:
                _send(connection, batch)
                waiting += 1
                if waiting == IN_FLIGHT:
                    _wait(connection, 1)
                    waiting -= 1
            _wait(connection, waiting)
        return WriterCommitMessage()


def _send(connection: socket.socket, batch: pa.RecordBatch) -> None:
    buffers = [each for column in batch.columns for each in column.buffers() if each is not None]
    parts = [memoryview(each) for each in buffers]
    connection.sendall(_LENGTH.pack(sum(map(len, parts))))
    for part in parts:
        connection.sendall(part)


def _wait(connection: socket.socket, answers: int) -> None:
    while answers:
        found = connection.recv(answers)
        if not found:
            raise ConnectionError("the bare process has gone")
        answers -= len(found)


def serve(path: str) -> None:
    """Receive, write and sync until killed."""
    received: queue.SimpleQueue[Received] = queue.SimpleQueue()
    threading.Thread(target=_store, args=(path, received), daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_receive, args=(connection, received), daemon=True).start()


def _receive(connection: socket.socket, received: "queue.SimpleQueue[Received]") -> None:
    with connection:
        while (length := _take(connection, _LENGTH.size)) is not None:
            batch = _take(connection, _LENGTH.unpack(length)[0])
            if batch is None:
                return
            received.put((connection, batch))


def _take(connection: socket.socket, length: int) -> memoryview | None:
    """Receive so many bytes; None if the connection has ended."""
    # Arrow's memory was used before, mostly: new memory costs more than to receive into it.
    memory = memoryview(pa.allocate_buffer(length)).cast("B")
    taken = 0
    while taken < length:
        count = connection.recv_into(memory[taken:])
        if not count:
            return None
        taken += count
    return memory


def _store(path: str, received: "queue.SimpleQueue[Received]") -> None:
    try:
        _store_all(path, received)
    finally:
        os._exit(1)  # Else tasks would wait for ever for answers, such as when the disk is full.


def _store_all(path: str, received: "queue.SimpleQueue[Received]") -> None:
    written = 0
    with Path(path).open("wb", buffering=0) as file:
        while True:
            group = [received.get()]
            while not received.empty():
                group.append(received.get())
            for _, batch in group:
                _write_all(file.fileno(), batch)
                written += len(batch)
            os.fdatasync(file.fileno())
            for connection, _ in group:
                with contextlib.suppress(OSError):
                    connection.send(_DURABLE)
            # Memory of the file cache is used again, as a journal's is. No length means all of it.
            if written > CACHED_BYTES:
                forgotten = written - CACHED_BYTES
                os.posix_fadvise(file.fileno(), 0, forgotten, os.POSIX_FADV_DONTNEED)


def _write_all(descriptor: int, batch: memoryview) -> None:
    while batch:
        batch = batch[os.write(descriptor, batch) :]


@contextlib.contextmanager
def bare_process() -> Iterator[int]:
    """Run the process; yields its port."""
    with tempfile.TemporaryDirectory(prefix="danube-bare-") as directory:
        command = [sys.executable, "-m", "benchmarks.spark.bare", f"{directory}/rows"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield int(process.stdout.readline())
            finally:
                process.kill()


if __name__ == "__main__":
    serve(sys.argv[1])
