"""Journals of every format ever released are read, and the present format does not drift."""

from pathlib import Path

import pytest

from pydanube.model.ids import Offset, ProducerId, SubscriptionId, TopicId
from pydanube.model.progress import Progress, ProgressChange
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.storage.errors import Fenced
from pydanube.storage.frames import Frame, FrameScan, Stop, encode_frame
from pydanube.storage.journal.contents import JournalContents, JournalFile
from pydanube.storage.journal.index_file import decode_index, encode_index
from pydanube.storage.journal.known import KnownSubscription, KnownTopic, decode_note, encode_note
from pydanube.storage.journal.producers import (
    LastBatch,
    ProducerStamp,
    decode_producers,
    encode_producers,
)
from pydanube.storage.journal.records import (
    BATCH_HEADER,
    JOURNAL_FORMAT,
    WHOLE_PROGRESS,
    Kind,
    decode_batch_header,
    decode_file_header,
    decode_mirrored,
    decode_owned,
    decode_progress,
    decode_snapshot,
    encode_batch_header,
    encode_file_header,
    encode_mirrored,
    encode_owned,
    encode_progress,
    encode_snapshot,
)
from tests.compatibility.journal_golden import (
    GOLDEN,
    LATER_STAMP,
    PLAIN,
    RICH,
    SESSION_STAMP,
    STAMP,
)
from tests.support.journals import DIRECTORY, Broker, broker_on, instant_disk

PRESENT = sorted(GOLDEN.glob(f"journal-format-{JOURNAL_FORMAT}*"))
FIRST = GOLDEN / "journal-format-1"
WITH_PRODUCERS = GOLDEN / "journal-format-1-producers"
OF_A_CLUSTER = GOLDEN / "journal-format-1-cluster"
PADDED = GOLDEN / "journal-format-1-padding"
WITH_NOTES = GOLDEN / "journal-format-1-notes"
LOST_BYTES = 880


async def disk_with(directory: Path) -> SimulatedDisk:
    disk = instant_disk()
    await disk.make_directory(DIRECTORY)
    for path in sorted(directory.iterdir()):
        file = await disk.create(f"{DIRECTORY}/{path.name}")
        await file.append_and_sync([path.read_bytes()])
        await file.close()
    await disk.sync_directory(DIRECTORY)
    return disk


async def read_messages(broker: Broker, topic: int) -> list[tuple[int, object]]:
    log = broker.storage.topic(TopicId(topic))
    found: list[tuple[int, object]] = []
    at = Offset(0)
    while pieces := await log.read(at, log.durable_end):
        for piece in pieces:
            rows = piece.batch.messages(piece.first_row, piece.end_row)
            found += [(piece.start + n, row) for n, row in enumerate(rows)]
        at = pieces[-1].end
    return found


def frames_of(path: Path) -> list[tuple[Frame, bytes, bytes]]:
    """Each frame, its payload, and all its bytes."""
    data = path.read_bytes()
    base = int(path.stem[-20:])
    scan = FrameScan(data, base)
    found = [(f, data[f.start : f.end], data[f.position - base : f.end]) for f in scan]
    assert scan.stop is Stop.END
    return found


@pytest.mark.parametrize("with_index", [True, False])
async def test_a_journal_of_format_1_is_read(with_index: bool) -> None:
    disk = await disk_with(GOLDEN / "journal-format-1")
    if not with_index:
        (index,) = [n for n in await disk.list_names(DIRECTORY) if n.endswith(".index")]
        await disk.remove(f"{DIRECTORY}/{index}")
    async with broker_on(disk, identity="GOLDEN/1") as broker:
        rich, plain = RICH, PLAIN
        rows = [rich, plain, rich, rich, plain, plain, plain, rich]
        assert await read_messages(broker, 1) == list(enumerate(rows))
        assert await read_messages(broker, 2) == [(0, plain)]
        assert broker.storage.topic(TopicId(1)).next_offset == 8
        assert broker.storage.topic(TopicId(2)).next_offset == 1 + LOST_BYTES
        assert broker.storage.progress(SubscriptionId(7)) == Progress(
            Offset(2), ((4, 6),), ((2, 3, 1), (6, 9, 4))
        )


@pytest.mark.parametrize("with_index", [True, False])
async def test_a_journal_with_notes_of_the_metadata_is_read(with_index: bool) -> None:
    disk = await disk_with(WITH_NOTES)
    if not with_index:
        (index,) = [n for n in await disk.list_names(DIRECTORY) if n.endswith(".index")]
        await disk.remove(f"{DIRECTORY}/{index}")
    async with broker_on(disk, identity="GOLDEN/1") as broker:
        known = broker.storage._contents.known
        topic = KnownTopic(TopicId(1024), 12, "/default/topic-1024", b'{"id":1024}')
        assert known.topics == {1024: topic}
        readers = KnownSubscription(
            SubscriptionId(2048), TopicId(1024), 12, "readers", b'{"id":2048,"start":0}'
        )
        assert known.subscriptions == {2048: readers}
        assert (known.revision, known.topic_id_max, known.subscription_id_max) == (12, 1025, 2048)
        assert await read_messages(broker, 1024) == list(enumerate([RICH, PLAIN, RICH, RICH]))


@pytest.mark.parametrize("with_index", [True, False])
async def test_a_journal_with_producers_is_read(with_index: bool) -> None:
    disk = await disk_with(WITH_PRODUCERS)
    if not with_index:
        (index,) = [n for n in await disk.list_names(DIRECTORY) if n.endswith(".index")]
        await disk.remove(f"{DIRECTORY}/{index}")
    async with broker_on(disk, identity="GOLDEN/1") as broker:
        named, session = (stamp.producer_id for stamp in (STAMP, SESSION_STAMP))
        assert known_producers(broker, 1) == {named: (STAMP, 0, 2), session: (SESSION_STAMP, 2, 1)}
        assert known_producers(broker, 2) == {session: (LATER_STAMP, 1, 1)}


@pytest.mark.parametrize("with_index", [True, False])
async def test_a_journal_of_a_cluster_is_read(with_index: bool) -> None:
    disk = await disk_with(OF_A_CLUSTER)
    if not with_index:
        for name in [n for n in await disk.list_names(DIRECTORY) if n.endswith(".index")]:
            await disk.remove(f"{DIRECTORY}/{name}")
    async with broker_on(disk, identity="GOLDEN/1") as broker:
        storage = broker.storage
        assert storage.epoch_of(TopicId(1)) == 8
        assert await read_messages(broker, 1) == [(40, RICH), (41, PLAIN), (42, RICH)]
        assert storage.mirrors.topics() == [2]
        for topic, refused in ((2, 5), (3, 8)):
            with pytest.raises(Fenced):
                await storage.mirrors.fence(TopicId(topic), refused)


@pytest.mark.parametrize("with_index", [True, False])
async def test_a_padded_journal_is_read(with_index: bool) -> None:
    disk = await disk_with(PADDED)
    if not with_index:
        (index,) = [n for n in await disk.list_names(DIRECTORY) if n.endswith(".index")]
        await disk.remove(f"{DIRECTORY}/{index}")
    async with broker_on(disk, identity="GOLDEN/1") as broker:
        assert await read_messages(broker, 1) == list(enumerate([RICH, PLAIN, RICH]))
        assert await read_messages(broker, 2) == [(0, PLAIN)]


def known_producers(broker: Broker, topic: int) -> dict[int, tuple[ProducerStamp, int, int]]:
    producers = broker.storage.topic(TopicId(topic)).producers
    assert all(last.time_ms > 10**12 for last in producers.values())
    return {key: (last.stamp, last.base, last.count) for key, last in producers.items()}


def encoded_again(frame: Frame, payload: bytes) -> bytes:
    match frame.kind:
        case Kind.FILE_HEADER:
            return encode_file_header(decode_file_header(payload))
        case Kind.SNAPSHOT:
            ((_, snapshot),) = encode_snapshot(decode_snapshot(payload))
            return snapshot
        case Kind.PRODUCERS:
            topics: dict[TopicId, dict[ProducerId, LastBatch]] = {}
            for topic_id, last in decode_producers(payload):
                topics.setdefault(topic_id, {})[last.stamp.producer_id] = last
            (producers,) = encode_producers(topics)
            return producers
        case Kind.BATCH:
            header = decode_batch_header(payload)
            return (
                encode_batch_header(
                    header.topic_id,
                    header.epoch,
                    header.base,
                    header.count,
                    header.time_ms,
                    header.stamp,
                )
                + payload[BATCH_HEADER.size :]
            )
        case Kind.PROGRESS:
            subscription, progress, _ = decode_progress(payload)
            if frame.flags & WHOLE_PROGRESS:
                return encode_progress(subscription, progress)
            return encode_progress(
                subscription, ProgressChange(progress.settled, progress.attempts)
            )
        case Kind.OWNED:
            (owned,) = encode_owned(decode_owned(payload))
            return owned
        case Kind.MIRRORED:
            (mirrored,) = encode_mirrored(decode_mirrored(payload))
            return mirrored
        case Kind.KNOWN:
            return encode_note(decode_note(payload))
        case Kind.HOLE | Kind.CLOSED | Kind.PADDING:
            return bytes(len(payload))
        case _:
            raise AssertionError(frame.kind)


def test_the_present_format_is_written_as_the_golden_journal_was() -> None:
    kinds = set()
    for path in (path for directory in PRESENT for path in sorted(directory.glob("*.log"))):
        for frame, payload, data in frames_of(path):
            kinds.add(Kind(frame.kind))
            again = encode_frame(
                frame.kind,
                frame.position,
                frame.durable,
                [encoded_again(frame, payload)],
                flags=frame.flags,
            )
            assert b"".join(again) == data, Kind(frame.kind)
    assert kinds == set(Kind) - {Kind.INDEX}


def test_the_golden_journal_holds_a_stamp() -> None:
    headers = [
        decode_batch_header(payload)
        for path in FIRST.glob("*.log")
        for frame, payload, _ in frames_of(path)
        if frame.kind == Kind.BATCH
    ]
    assert [header.stamp for header in headers if header.stamp] == [STAMP]
    assert {header.epoch for header in headers} == {5}


@pytest.mark.parametrize("directory", PRESENT, ids=lambda path: path.name)
def test_the_present_index_is_written_as_the_golden_one_was(directory: Path) -> None:
    (path,) = directory.glob("*.index")
    log = path.with_suffix(".log")
    contents = JournalContents()
    start = frames_of(log)[0][0].position
    index = decode_index(path.read_bytes(), start)  # type: ignore[arg-type]
    assert index is not None
    file = JournalFile(start=start, end=index.end, topics=set())  # type: ignore[arg-type]
    data = log.read_bytes()
    contents.fold(data, FrameScan(data, start), file)
    assert b"".join(encode_index(contents, file)) == path.read_bytes()
