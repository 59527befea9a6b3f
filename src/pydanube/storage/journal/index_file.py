"""The index of a finished journal file, which spares a restart from reading the file. Pure."""

import sys
from array import array
from bisect import bisect_left
from struct import Struct as Layout

from msgspec import Struct

from pydanube.model.ids import JournalPosition, TopicId
from pydanube.storage.frames import FORMAT_VERSION, FrameScan, Stop, encode_frame
from pydanube.storage.journal.contents import JournalContents, JournalFile, TopicIndex
from pydanube.storage.journal.records import Kind

_FILE = Layout("<QI")
_TOPIC = Layout("<QQI")
_BYTES_A_BATCH = 8 + 8 + 4


class _TopicPart(Struct, frozen=True):
    """A topic's batches in one file."""

    end: int
    bases: "array[int]"
    positions: "array[int]"
    sizes: "array[int]"


class FileIndex(Struct, frozen=True):
    """What an index file says about its journal file."""

    end: JournalPosition
    topics: dict[TopicId, _TopicPart]

    def enter(self, contents: JournalContents, file: JournalFile) -> None:
        """Fold the file's batches in, as if its frames had been read."""
        for topic_id, part in self.topics.items():
            index = contents.topics.setdefault(topic_id, TopicIndex())
            index.bases.extend(part.bases)
            index.positions.extend(part.positions)
            index.sizes.extend(part.sizes)
            index.end = index.next_offset = part.end
            index.last_file = file
            file.topics.add(topic_id)


def encode_index(contents: JournalContents, file: JournalFile) -> list[bytes]:
    """Return the index of a file that has just been finished: no batch lies behind it yet."""
    topics: list[bytes] = []
    topic_count = 0
    for topic_id in sorted(file.topics & contents.topics.keys()):
        index = contents.topics[topic_id]
        first = bisect_left(index.positions, file.start)
        count = len(index.positions) - first
        if count == 0:
            continue
        topic_count += 1
        topics.append(_TOPIC.pack(topic_id, index.end, count))
        topics += map(
            _to_bytes, (index.bases[first:], index.positions[first:], index.sizes[first:])
        )
    payload = [_FILE.pack(file.end, topic_count), *topics]
    return encode_frame(Kind.INDEX, file.start, file.start, payload)


def decode_index(data: bytes, start: JournalPosition) -> FileIndex | None:
    """Read an index file; None if it is damaged, or not the index of the file that starts there."""
    scan = FrameScan(data, start)
    frames = list(scan)
    if scan.stop is not Stop.END or len(frames) != 1:
        return None
    frame = frames[0]
    if frame.kind != Kind.INDEX or frame.version != FORMAT_VERSION:
        return None
    end, topic_count = _FILE.unpack_from(data, frame.start)
    at = frame.start + _FILE.size
    topics = {}
    for _ in range(topic_count):
        topic_id, topic_end, count = _TOPIC.unpack_from(data, at)
        at += _TOPIC.size
        positions_at, sizes_at = at + count * 8, at + count * 16
        after = at + count * _BYTES_A_BATCH
        topics[TopicId(topic_id)] = _TopicPart(
            topic_end,
            _from_bytes("Q", data[at:positions_at]),
            _from_bytes("Q", data[positions_at:sizes_at]),
            _from_bytes("I", data[sizes_at:after]),
        )
        at = after
    return FileIndex(JournalPosition(end), topics)


def _to_bytes(numbers: "array[int]") -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _from_bytes(code: str, data: bytes) -> "array[int]":
    numbers = array(code)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
