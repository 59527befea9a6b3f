"""What a topic remembers of its producers, so that a batch sent twice is stored once. Pure."""

from collections.abc import Iterator, Mapping
from struct import Struct as Layout

from msgspec import Struct

from pydanube.model.ids import Offset, ProducerId, TopicId

_PRODUCER = Layout("<QQQQQQIIQ")
_DIGEST_GIVEN, _SESSION = 2, 4
_FRAME_BYTES = 1024 * 1024
_PRODUCERS_PER_FRAME = _FRAME_BYTES // _PRODUCER.size


class ProducerStamp(Struct, frozen=True, kw_only=True):
    """What makes a repeated batch known as such: who sent it, and its first and last sequence."""

    producer_id: ProducerId
    first_sequence: int
    last_sequence: int
    digest: int | None = None
    session: bool = False
    """The producer lives as long as one client does, and may be forgotten once that is gone."""


class LastBatch(Struct, frozen=True, kw_only=True):
    """The latest batch of a producer on a topic."""

    stamp: ProducerStamp
    base: Offset
    count: int
    time_ms: int
    """When the broker took it."""

    @property
    def end(self) -> Offset:
        """The offset behind its last message."""
        return Offset(self.base + self.count)


Producers = Mapping[ProducerId, LastBatch]


def encode_producers(topics: Mapping[TopicId, Producers]) -> Iterator[bytes]:
    """Return the payloads of as many PRODUCERS frames as it takes; none without producers."""
    parts: list[bytes] = []
    for topic_id, producers in topics.items():
        for last in producers.values():
            parts.append(_encode(topic_id, last))
            if len(parts) == _PRODUCERS_PER_FRAME:
                yield b"".join(parts)
                parts = []
    if parts:
        yield b"".join(parts)


def _encode(topic_id: TopicId, last: LastBatch) -> bytes:
    stamp = last.stamp
    flags = (_DIGEST_GIVEN if stamp.digest is not None else 0) | (_SESSION if stamp.session else 0)
    return _PRODUCER.pack(
        topic_id,
        stamp.producer_id,
        stamp.first_sequence,
        stamp.last_sequence,
        stamp.digest or 0,
        last.base,
        last.count,
        flags,
        last.time_ms,
    )


def decode_producers(payload: bytes) -> Iterator[tuple[TopicId, LastBatch]]:
    """Read a PRODUCERS payload."""
    for topic_id, producer, first, last, digest, base, count, flags, time in _PRODUCER.iter_unpack(
        payload
    ):
        stamp = ProducerStamp(
            producer_id=ProducerId(producer),
            first_sequence=first,
            last_sequence=last,
            digest=digest if flags & _DIGEST_GIVEN else None,
            session=bool(flags & _SESSION),
        )
        batch = LastBatch(stamp=stamp, base=Offset(base), count=count, time_ms=time)
        yield TopicId(topic_id), batch
