"""The payloads of the journal's frames, as docs/formats/journal.md specifies them. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from itertools import chain
from struct import Struct as Layout
from struct import pack
from types import MappingProxyType

import msgspec
from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.model.ids import Offset, ProducerId, SubscriptionId, TopicId
from pydanube.model.progress import Progress, ProgressChange
from pydanube.storage.journal.producers import Producers, ProducerStamp, encode_producers

JOURNAL_FORMAT = 1
SNAPSHOT_FRAME_BYTES = 1024 * 1024


class Kind(IntEnum):
    """What a frame's payload is."""

    FILE_HEADER = 1
    SNAPSHOT = 2
    BATCH = 3
    PROGRESS = 4
    CLOSED = 5
    HOLE = 6
    INDEX = 7
    PRODUCERS = 8
    OWNED = 9
    MIRRORED = 10
    PADDING = 11
    KNOWN = 12


class FileHeader(Struct, frozen=True, kw_only=True):
    """Whose file it is."""

    format: int = JOURNAL_FORMAT
    journal: str
    identity: str
    created_ms: int


def encode_file_header(header: FileHeader) -> bytes:
    """Return a FILE_HEADER payload."""
    return msgspec.json.encode(header)


def decode_file_header(payload: bytes) -> FileHeader:
    """Read a FILE_HEADER payload; refuse one from a later version."""
    try:
        header = msgspec.json.decode(payload, type=FileHeader)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"not the header of a journal file: {error}") from error
    if header.format > JOURNAL_FORMAT:
        raise InvalidRequest(
            f"the journal has format {header.format}, this version reads up to {JOURNAL_FORMAT}; "
            "start the version of PyDanube that wrote it, or a later one"
        )
    return header


BATCH_HEADER = Layout("<QQQIIQQQQQ")
BATCH_PLACE = Layout("<Q8xQI")
"""Of a BATCH payload only what readers need: topic id, base offset, count."""
BATCH_FOLDED = Layout("<Q8xQII")
"""Of a BATCH payload only what recovery needs of every one: topic id, base, count, flags."""
_SEQUENCES_GIVEN, _DIGEST_GIVEN, _SESSION = 1, 2, 4


class BatchHeader(Struct, frozen=True, kw_only=True):
    """What a BATCH record says about its body."""

    topic_id: TopicId
    epoch: int
    base: Offset
    count: int
    time_ms: int
    stamp: ProducerStamp | None


def encode_batch_header(
    topic_id: int, epoch: int, base: int, count: int, time_ms: int, stamp: ProducerStamp | None
) -> bytes:
    """Return the fixed part of a BATCH payload; the body follows it."""
    if stamp is None:
        return BATCH_HEADER.pack(topic_id, epoch, base, count, 0, 0, 0, 0, 0, time_ms)
    flags = (
        _SEQUENCES_GIVEN
        | (_DIGEST_GIVEN if stamp.digest is not None else 0)
        | (_SESSION if stamp.session else 0)
    )
    return BATCH_HEADER.pack(
        topic_id,
        epoch,
        base,
        count,
        flags,
        stamp.producer_id,
        stamp.first_sequence,
        stamp.last_sequence,
        stamp.digest or 0,
        time_ms,
    )


def decode_batch_header(payload: bytes) -> BatchHeader:
    """Read the fixed part of a BATCH payload."""
    topic_id, epoch, base, count, flags, producer, first, last, digest, time_ms = (
        BATCH_HEADER.unpack_from(payload)
    )
    stamp = None
    if flags & _SEQUENCES_GIVEN:
        stamp = ProducerStamp(
            producer_id=ProducerId(producer),
            first_sequence=first,
            last_sequence=last,
            digest=digest if flags & _DIGEST_GIVEN else None,
            session=bool(flags & _SESSION),
        )
    return BatchHeader(
        topic_id=TopicId(topic_id),
        epoch=epoch,
        base=Offset(base),
        count=count,
        time_ms=time_ms,
        stamp=stamp,
    )


WHOLE_PROGRESS = 1
"""Flag of a PROGRESS frame: it replaces what was before."""
_PROGRESS = Layout("<QQII")
_SETTLED = Layout("<QQ")
_ATTEMPTS = Layout("<QQI")


def encode_progress(subscription_id: int, progress: Progress | ProgressChange) -> bytes:
    """Return a PROGRESS payload; a change has no cursor of its own."""
    cursor = progress.cursor if isinstance(progress, Progress) else 0
    settled, attempts = progress.settled, progress.attempts
    parts = [_PROGRESS.pack(subscription_id, cursor, len(settled), len(attempts))]
    parts += [_SETTLED.pack(*pair) for pair in settled]
    parts += [_ATTEMPTS.pack(*triple) for triple in attempts]
    return b"".join(parts)


def decode_progress(payload: bytes, at: int = 0) -> tuple[SubscriptionId, Progress, int]:
    """Read a PROGRESS payload that begins at `at`; return where it ends, too."""
    subscription_id, cursor, settled_count, attempts_count = _PROGRESS.unpack_from(payload, at)
    at += _PROGRESS.size
    middle = at + settled_count * _SETTLED.size
    end = middle + attempts_count * _ATTEMPTS.size
    return (
        SubscriptionId(subscription_id),
        Progress(
            Offset(cursor),
            tuple(_SETTLED.iter_unpack(payload[at:middle])),
            tuple(_ATTEMPTS.iter_unpack(payload[middle:end])),
        ),
        end,
    )


_OWNED = Layout("<QQQQ")
HERE = 2**64 - 1
"""In place of a position in an OWNED record: it holds from its own frame on."""


class Owned(Struct, frozen=True):
    """From a position of the journal on, a topic is written under an epoch, at an offset."""

    topic_id: TopicId
    epoch: int
    start: Offset
    position: int = HERE


def encode_owned(owned: Iterable[Owned]) -> Iterator[bytes]:
    """Return the payloads of as many OWNED frames as it takes; none for nothing."""
    entries = [_OWNED.pack(o.topic_id, o.epoch, o.start, o.position) for o in owned]
    per_frame = SNAPSHOT_FRAME_BYTES // _OWNED.size
    for first in range(0, len(entries), per_frame):
        yield b"".join(entries[first : first + per_frame])


def decode_owned(payload: bytes) -> Iterator[Owned]:
    """Read an OWNED payload."""
    for topic_id, epoch, start, position in _OWNED.iter_unpack(payload):
        yield Owned(TopicId(topic_id), epoch, Offset(start), position)


_MIRRORED = Layout("<QQQQQQ")
NOT_WHOLE = 2**64 - 1
"""In place of a sequence in a MIRRORED record: the copy does not have everything yet."""


class Mirrored(Struct, frozen=True, kw_only=True):
    """What a broker holds of another broker's topic, and what it has promised about the topic."""

    topic_id: TopicId
    epoch: int
    start: Offset
    stream: int
    """Of the owner that sends it; 0: this broker holds no copy, and only promises."""
    sequence: int
    """Everything of that stream up to here is in the journal; NOT_WHOLE if not even its
    beginning is."""
    promised: int
    """Nothing of an earlier epoch is taken any more."""


def encode_mirrored(mirrored: Iterable[Mirrored]) -> Iterator[bytes]:
    """Return the payloads of as many MIRRORED frames as it takes; none for nothing."""
    entries = [
        _MIRRORED.pack(m.topic_id, m.epoch, m.start, m.stream, m.sequence, m.promised)
        for m in mirrored
    ]
    per_frame = SNAPSHOT_FRAME_BYTES // _MIRRORED.size
    for first in range(0, len(entries), per_frame):
        yield b"".join(entries[first : first + per_frame])


WITH_PRODUCERS = 4
"""Flag of a MIRRORED frame: of one topic, and behind it are all the producers it has."""


def encode_whole_copy(mirrored: Mirrored, producers: Iterable[bytes]) -> bytes:
    """Return a MIRRORED payload for WITH_PRODUCERS."""
    return b"".join((*encode_mirrored([mirrored]), *producers))


def decode_whole_copy(payload: bytes) -> tuple[Mirrored, bytes]:
    """Read a MIRRORED payload that has WITH_PRODUCERS; return its PRODUCERS payload, too."""
    (mirrored,) = decode_mirrored(payload[: _MIRRORED.size])
    return mirrored, payload[_MIRRORED.size :]


def decode_mirrored(payload: bytes) -> Iterator[Mirrored]:
    """Read a MIRRORED payload."""
    for topic_id, epoch, start, stream, sequence, promised in _MIRRORED.iter_unpack(payload):
        yield Mirrored(
            topic_id=TopicId(topic_id),
            epoch=epoch,
            start=Offset(start),
            stream=stream,
            sequence=sequence,
            promised=promised,
        )


FIRST_OF_SNAPSHOT, LAST_OF_SNAPSHOT = 1, 2
"""Flags of a snapshot's frames: KNOWN, OWNED, MIRRORED and PRODUCERS, if any, then SNAPSHOT."""
_SNAPSHOT = Layout("<QII")
_TOPIC_NEXT = Layout("<QQ")
_TOPICS_PER_FRAME = SNAPSHOT_FRAME_BYTES // _TOPIC_NEXT.size


class Snapshot(Struct, frozen=True):
    """What all frames of a journal add up to, batches aside."""

    floor: int
    next_offsets: Mapping[TopicId, int]
    progress: Mapping[SubscriptionId, Progress]
    producers: Mapping[TopicId, Producers] = MappingProxyType({})
    owned: tuple[Owned, ...] = ()
    mirrored: tuple[Mirrored, ...] = ()
    known: tuple[bytes, ...] = ()
    """Payloads of KNOWN frames."""


def encode_prologue(header: FileHeader, snapshot: Snapshot) -> list[tuple[Kind, int, bytes]]:
    """Return kind, flags and payload of the frames a file begins with."""
    frames = [(Kind.KNOWN, 0, payload) for payload in snapshot.known]
    frames += [(Kind.OWNED, 0, payload) for payload in encode_owned(snapshot.owned)]
    frames += [(Kind.MIRRORED, 0, payload) for payload in encode_mirrored(snapshot.mirrored)]
    frames += [(Kind.PRODUCERS, 0, payload) for payload in encode_producers(snapshot.producers)]
    frames += [(Kind.SNAPSHOT, flags, payload) for flags, payload in encode_snapshot(snapshot)]
    # All of them are one snapshot: a damaged one is noticed whatever part of it is missing.
    frames = [
        (kind, flags & ~FIRST_OF_SNAPSHOT | (0 if number else FIRST_OF_SNAPSHOT), payload)
        for number, (kind, flags, payload) in enumerate(frames)
    ]
    return [(Kind.FILE_HEADER, 0, encode_file_header(header)), *frames]


def encode_snapshot(snapshot: Snapshot) -> list[tuple[int, bytes]]:
    """Return the (flags, payload) of as many SNAPSHOT frames as it takes, at least one."""
    frames: list[tuple[int, int, bytes]] = []
    topics = list(snapshot.next_offsets.items())
    for first in range(0, len(topics), _TOPICS_PER_FRAME):
        part = topics[first : first + _TOPICS_PER_FRAME]
        body = pack(f"<{2 * len(part)}Q", *chain.from_iterable(part))
        frames.append((len(part), 0, body))
    frames += [(0, count, body) for count, body in _progress_bodies(snapshot.progress)]
    if not frames:
        frames.append((0, 0, b""))
    return [
        (
            (FIRST_OF_SNAPSHOT if index == 0 else 0)
            | (LAST_OF_SNAPSHOT if index == len(frames) - 1 else 0),
            _SNAPSHOT.pack(snapshot.floor, topic_count, progress_count) + body,
        )
        for index, (topic_count, progress_count, body) in enumerate(frames)
    ]


def _progress_bodies(progress: Mapping[SubscriptionId, Progress]) -> Iterator[tuple[int, bytes]]:
    gathered: list[bytes] = []
    size = 0
    for subscription_id, whole in progress.items():
        gathered.append(encode_progress(subscription_id, whole))
        size += len(gathered[-1])
        if size >= SNAPSHOT_FRAME_BYTES:
            yield len(gathered), b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield len(gathered), b"".join(gathered)


def decode_snapshot(payload: bytes) -> Snapshot:
    """Read one SNAPSHOT frame's payload: a part of a snapshot, or all of it."""
    floor, topic_count, progress_count = _SNAPSHOT.unpack_from(payload)
    at = _SNAPSHOT.size + topic_count * _TOPIC_NEXT.size
    topics: Iterable[tuple[int, int]] = _TOPIC_NEXT.iter_unpack(payload[_SNAPSHOT.size : at])
    progress = {}
    for _ in range(progress_count):
        subscription_id, whole, at = decode_progress(payload, at)
        progress[subscription_id] = whole
    return Snapshot(floor, {TopicId(topic_id): after for topic_id, after in topics}, progress)
