"""What a segment costs: encoded as the broker does it, and as plain Parquet without compression.

python -m benchmarks.segments [--rows 100000] [--rounds 7]

One thread, in memory alone and into a file that is synced. 1 KiB messages that compress to a third.
Plain Parquet is what pyarrow writes of the same rows: no page checksums, no index, no checksums of
the file and its parts.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import describe_machine
from pydanube.model.ids import Offset, TopicId
from pydanube.storage.pieces import Piece
from pydanube.storage.segments.encoding import SegmentEncoder, SegmentOrigin
from tests.support.journals import batch_of

PAYLOAD_BYTES = 1024
BATCH_ROWS = 1_000
ORIGIN = SegmentOrigin(topic="/default/bench", topic_id=TopicId(1), epoch=1)

Encode = Callable[[], bytes]


def messages(rows: int) -> list[Piece]:
    words = [bytes(random.choices(b"abcdefghij0123456789", k=32)) for _ in range(4_000)]

    def payload() -> bytes:
        return b"".join(random.choices(words, k=PAYLOAD_BYTES // 32))

    return [
        Piece(Offset(base), batch_of(*(payload() for _ in range(BATCH_ROWS))), 0, BATCH_ROWS)
        for base in range(0, rows, BATCH_ROWS)
    ]


def segment(pieces: list[Piece]) -> bytes:
    encoder = SegmentEncoder(ORIGIN, Offset(0))
    encoder.add(pieces)
    return encoder.finish().data


def plain(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="none", use_dictionary=False)
    return sink.getvalue().to_pybytes()


def stored(encode: Encode) -> bytes:
    """Encode into a file, and sync it."""
    with tempfile.NamedTemporaryFile() as file:
        data = encode()
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    wanted = parser.parse_args()
    pieces = messages(wanted.rows)
    encoded = segment(pieces)
    rows = pq.read_table(pa.BufferReader(encoded))
    work: dict[str, Encode] = {
        "segment": lambda: segment(pieces),
        "plain": lambda: plain(rows),
        "segment, synced": lambda: stored(lambda: segment(pieces)),
        "plain, synced": lambda: stored(lambda: plain(rows)),
    }
    spent: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(wanted.rounds):
        for name, encode in work.items():
            started = time.perf_counter()
            encode()
            spent[name].append(time.perf_counter() - started)
    found = {name: statistics.median(each) for name, each in spent.items()}
    size = wanted.rows * PAYLOAD_BYTES
    print(f"{describe_machine()}; a segment has {len(encoded) / size:.2f} of its payloads' bytes")
    for name, seconds in found.items():
        print(f"{name}: {size / seconds / 1e6:.0f} MB/s of payload")
    for where in ("", ", synced"):
        print(f"segment to plain{where}: {found['plain' + where] / found['segment' + where]:.2f}")


if __name__ == "__main__":
    main()
