import msgspec
import pytest

from pydanube.errors import InvalidRequest
from pydanube.model.ids import Offset, ProducerId, SubscriptionId, TopicId
from pydanube.model.progress import Progress, ProgressChange
from pydanube.storage.journal import records
from pydanube.storage.journal.producers import ProducerStamp
from pydanube.storage.journal.records import (
    FIRST_OF_SNAPSHOT,
    LAST_OF_SNAPSHOT,
    BatchHeader,
    FileHeader,
    Snapshot,
    decode_batch_header,
    decode_file_header,
    decode_progress,
    decode_snapshot,
    encode_batch_header,
    encode_file_header,
    encode_progress,
    encode_snapshot,
)

STAMP = ProducerStamp(
    producer_id=ProducerId(2**53 - 1), first_sequence=0, last_sequence=2**64 - 1, digest=0
)


def test_a_batch_header_is_laid_out_as_documented() -> None:
    header = encode_batch_header(1, 2, 3, 4, 5, STAMP)
    assert len(header) == 72
    fields = [int.from_bytes(header[a:b], "little") for a, b in [(0, 8), (8, 16), (16, 24)]]
    assert fields == [1, 2, 3]
    assert int.from_bytes(header[24:28], "little") == 4
    assert int.from_bytes(header[28:32], "little") == 3
    assert int.from_bytes(header[64:72], "little") == 5


@pytest.mark.parametrize(
    "stamp",
    [
        None,
        STAMP,
        msgspec.structs.replace(STAMP, digest=None),
        msgspec.structs.replace(STAMP, session=True),
    ],
)
def test_batch_headers_come_back(stamp: ProducerStamp | None) -> None:
    header = encode_batch_header(1, 2, 3, 4, 5, stamp)
    assert decode_batch_header(header + b"body") == BatchHeader(
        topic_id=TopicId(1), epoch=2, base=Offset(3), count=4, time_ms=5, stamp=stamp
    )


def test_progress_comes_back() -> None:
    whole = Progress(Offset(2**63), ((1, 2), (3, 4)), ((5, 6, 7),))
    payload = encode_progress(9, whole)
    assert decode_progress(b"before" + payload + b"after", 6) == (9, whole, 6 + len(payload))
    change = ProgressChange(((1, 2),), ())
    assert decode_progress(encode_progress(9, change))[1] == Progress(Offset(0), ((1, 2),))


def test_a_snapshot_of_nothing_is_one_frame() -> None:
    ((flags, payload),) = encode_snapshot(Snapshot(0, {}, {}))
    assert flags == FIRST_OF_SNAPSHOT | LAST_OF_SNAPSHOT
    assert decode_snapshot(payload) == Snapshot(0, {}, {})


def test_a_big_snapshot_takes_several_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SNAPSHOT_FRAME_BYTES", 200)
    monkeypatch.setattr(records, "_TOPICS_PER_FRAME", 3)
    topics = {TopicId(n): n * 10 for n in range(7)}
    progress = {SubscriptionId(n): Progress(Offset(n), ((n + 1, n + 2),)) for n in range(20)}
    frames = encode_snapshot(Snapshot(5, topics, progress))
    assert len(frames) > 4
    assert [flags for flags, _ in frames] == [1, *[0] * (len(frames) - 2), 2]
    parts = [decode_snapshot(payload) for _, payload in frames]
    assert {k: v for part in parts for k, v in part.next_offsets.items()} == topics
    assert {k: v for part in parts for k, v in part.progress.items()} == progress
    assert {part.floor for part in parts} == {5}


def test_a_file_header_comes_back_and_unknown_members_are_ignored() -> None:
    header = FileHeader(journal="5f", identity="C/1", created_ms=7)
    assert decode_file_header(encode_file_header(header)) == header
    assert decode_file_header(encode_file_header(header)[:-1] + b',"new":[1]}') == header


def test_a_file_header_from_the_future_is_refused() -> None:
    header = FileHeader(format=2, journal="5f", identity="C/1", created_ms=7)
    with pytest.raises(InvalidRequest, match="format 2"):
        decode_file_header(encode_file_header(header))


def test_something_else_is_no_file_header() -> None:
    with pytest.raises(InvalidRequest, match="not the header"):
        decode_file_header(b"nonsense")
