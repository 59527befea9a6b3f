import pytest

from pydanube.errors import Corruption
from pydanube.model.ids import JournalPosition, Offset, SubscriptionId, TopicId
from pydanube.model.progress import Progress
from pydanube.storage.frames import FrameScan, encode_frame
from pydanube.storage.journal.contents import JournalContents, JournalFile
from pydanube.storage.journal.index_file import decode_index, encode_index
from pydanube.storage.journal.records import (
    FIRST_OF_SNAPSHOT,
    LAST_OF_SNAPSHOT,
    Kind,
    Snapshot,
    encode_batch_header,
    encode_snapshot,
)


class Log:
    """Frames one after another, and what they fold into."""

    def __init__(self) -> None:
        self.data = b""

    def add(self, kind: Kind, payload: bytes, flags: int = 0) -> None:
        self.data += b"".join(encode_frame(kind, len(self.data), 0, [payload], flags=flags))

    def batch(self, topic: int, base: int, count: int = 1) -> None:
        self.add(Kind.BATCH, encode_batch_header(topic, 0, base, count, 0, None) + b"body")

    def snapshot(self, topics: dict[int, int], flags: int, floor: int = 0) -> None:
        offsets = {TopicId(topic): after for topic, after in topics.items()}
        ((_, payload),) = encode_snapshot(Snapshot(floor, offsets, {}))
        self.add(Kind.SNAPSHOT, payload, flags)

    def folded(self) -> tuple[JournalContents, JournalFile]:
        contents = JournalContents()
        end = JournalPosition(len(self.data))
        file = JournalFile(start=JournalPosition(0), end=end, topics=set())
        contents.fold(self.data, FrameScan(self.data, 0), file)
        return contents, file


HOLE_BYTES = 32 + 100


def test_batches_and_snapshots_say_where_a_topic_goes_on() -> None:
    log = Log()
    log.batch(1, 0, 3)
    log.batch(1, 3, 2)
    log.snapshot({1: 5, 2: 40}, FIRST_OF_SNAPSHOT | LAST_OF_SNAPSHOT)
    contents, file = log.folded()
    assert contents.topic(TopicId(1)).next_offset == 5
    assert contents.topic(TopicId(2)).next_offset == 40
    assert contents.topic(TopicId(3)).next_offset == 0
    assert file.topics == {1}
    assert file.prologue_whole


def test_a_snapshot_with_a_hole_inside_does_not_speak_for_everybody() -> None:
    log = Log()
    log.snapshot({1: 5}, FIRST_OF_SNAPSHOT)
    log.add(Kind.HOLE, bytes(100))
    log.snapshot({2: 7}, LAST_OF_SNAPSHOT)
    contents, file = log.folded()
    assert not file.prologue_whole
    assert contents.topic(TopicId(1)).next_offset == 5 + HOLE_BYTES
    assert contents.topic(TopicId(2)).next_offset == 7
    assert contents.topic(TopicId(3)).next_offset == HOLE_BYTES


def test_a_whole_snapshot_behind_a_hole_ends_all_doubt() -> None:
    log = Log()
    log.batch(1, 0)
    log.batch(2, 0)
    log.add(Kind.HOLE, bytes(100))
    log.snapshot({1: 4}, FIRST_OF_SNAPSHOT | LAST_OF_SNAPSHOT)
    contents, _ = log.folded()
    assert contents.topic(TopicId(1)).next_offset == 4
    assert contents.topic(TopicId(3)).next_offset == 0
    assert [(hit.topic_id, hit.start, hit.end) for hit in contents.lost_offsets()] == [
        (1, 1, 4),
        (2, 1, None),
    ]


def test_a_topic_first_seen_behind_a_hole_lost_what_is_before() -> None:
    log = Log()
    log.add(Kind.HOLE, bytes(100))
    log.batch(1, 6)
    contents, _ = log.folded()
    assert [(hit.topic_id, hit.start, hit.end) for hit in contents.lost_offsets()] == [(1, 0, 6)]


@pytest.mark.parametrize("doubt", [False, True])
def test_overlapping_batches_are_a_contradiction(doubt: bool) -> None:
    log = Log()
    log.batch(1, 0, 3)
    log.batch(2, 0)
    if doubt:
        log.add(Kind.HOLE, bytes(100))
    log.batch(1, 2)
    with pytest.raises(Corruption, match="topic 1 has a batch at offset 2"):
        log.folded()


def test_an_index_says_what_the_frames_say() -> None:
    log = Log()
    for base in range(5):
        log.batch(1, base)
        log.batch(2, base * 10, 10)
    contents, file = log.folded()
    data = b"".join(encode_index(contents, file))
    index = decode_index(data, file.start)
    assert index is not None
    entered = JournalContents()
    copy = JournalFile(start=file.start, end=file.end, topics=set())
    index.enter(entered, copy)
    assert copy.topics == file.topics
    assert index.end == file.end
    for topic, held in contents.topics.items():
        again = entered.topics[topic]
        assert (again.bases, again.positions, again.sizes) == (
            held.bases,
            held.positions,
            held.sizes,
        )
        assert (again.end, again.next_offset) == (held.end, held.next_offset)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        assert decode_index(bytes(flipped), file.start) is None
    assert decode_index(data, JournalPosition(1)) is None


def test_progress_is_kept_only_for_what_exists() -> None:
    contents = JournalContents()
    contents.keep_only({TopicId(1)}, {SubscriptionId(7)})
    assert not contents.topics
    assert not contents.progress
    contents.floor = 50
    contents.keep_only({TopicId(1)}, {SubscriptionId(7)})
    assert contents.topics[TopicId(1)].next_offset == 50
    assert contents.progress[SubscriptionId(7)].whole() == Progress(Offset(0))
    assert contents.topic(TopicId(2)).next_offset == 0
