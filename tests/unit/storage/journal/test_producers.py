import pytest

from pydanube.model.ids import JournalPosition, Offset, ProducerId, TopicId
from pydanube.storage.frames import FrameScan, encode_frame
from pydanube.storage.journal import producers as producers_module
from pydanube.storage.journal.contents import JournalContents, JournalFile
from pydanube.storage.journal.producers import (
    LastBatch,
    ProducerStamp,
    decode_producers,
    encode_producers,
)
from pydanube.storage.journal.records import (
    FIRST_OF_SNAPSHOT,
    LAST_OF_SNAPSHOT,
    FileHeader,
    Kind,
    Snapshot,
    encode_batch_header,
    encode_prologue,
)

HEADER = FileHeader(journal="j", identity="", created_ms=0)
TOPIC = TopicId(1)


def stamp(producer: int, first: int, last: int, **rest: object) -> ProducerStamp:
    return ProducerStamp(
        producer_id=ProducerId(producer),
        first_sequence=first,
        last_sequence=last,
        **rest,  # type: ignore[arg-type]
    )


def last_batch(of: ProducerStamp, base: int = 0, count: int = 1, time_ms: int = 9) -> LastBatch:
    return LastBatch(stamp=of, base=Offset(base), count=count, time_ms=time_ms)


class Log:
    """Frames one after another, and what they fold into."""

    def __init__(self) -> None:
        self.data = b""

    def add(self, kind: Kind, payload: bytes, flags: int = 0) -> None:
        self.data += b"".join(encode_frame(kind, len(self.data), 0, [payload], flags=flags))

    def batch(self, base: int, of: ProducerStamp | None, count: int = 1) -> None:
        header = encode_batch_header(TOPIC, 0, base, count, 9, of)
        self.add(Kind.BATCH, header + b"body")

    def prologue(self, *known: LastBatch, leave_out: int | None = None) -> None:
        held = {TOPIC: {last.stamp.producer_id: last for last in known}}
        snapshot = Snapshot(0, {TOPIC: 5}, {}, held)
        for number, (kind, flags, payload) in enumerate(encode_prologue(HEADER, snapshot)):
            if number == leave_out:
                self.add(Kind.HOLE, bytes(len(payload)))
            else:
                self.add(kind, payload, flags)

    def known(self) -> dict[int, LastBatch]:
        contents = JournalContents()
        end = JournalPosition(len(self.data))
        file = JournalFile(start=JournalPosition(0), end=end, topics=set())
        contents.fold(self.data, FrameScan(self.data, 0), file)
        return dict(contents.topic(TOPIC).producers)


def test_producers_come_back_from_as_many_frames_as_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers_module, "_PRODUCERS_PER_FRAME", 2)
    held = {
        TopicId(topic): {
            ProducerId(number): last_batch(
                stamp(
                    number,
                    2**63,
                    2**64 - 1,
                    digest=None if number % 2 else number,
                    session=number == 1,
                ),
                base=2**60,
                count=number,
                time_ms=2**41,
            )
            for number in range(3)
        }
        for topic in (1, 2**64 - 1)
    }
    payloads = list(encode_producers(held))
    assert [len(payload) for payload in payloads] == [128, 128, 128]
    found: dict[TopicId, dict[ProducerId, LastBatch]] = {}
    for payload in payloads:
        for topic, last in decode_producers(payload):
            found.setdefault(topic, {})[last.stamp.producer_id] = last
    assert found == held


def test_without_producers_there_is_no_frame_of_them() -> None:
    kinds = [(kind, flags) for kind, flags, _ in encode_prologue(HEADER, Snapshot(0, {}, {}))]
    assert kinds == [(Kind.FILE_HEADER, 0), (Kind.SNAPSHOT, FIRST_OF_SNAPSHOT | LAST_OF_SNAPSHOT)]


def test_with_producers_the_snapshot_begins_with_them() -> None:
    held = {TOPIC: {ProducerId(1): last_batch(stamp(1, 0, 0))}}
    frames = encode_prologue(HEADER, Snapshot(0, {TOPIC: 1}, {}, held))
    assert [(kind, flags) for kind, flags, _ in frames] == [
        (Kind.FILE_HEADER, 0),
        (Kind.PRODUCERS, FIRST_OF_SNAPSHOT),
        (Kind.SNAPSHOT, LAST_OF_SNAPSHOT),
    ]


@pytest.mark.parametrize("in_doubt", [False, True])
def test_the_latest_batch_of_each_producer_is_known(in_doubt: bool) -> None:
    log = Log()
    log.batch(0, stamp(1, 0, 4), count=5)
    if in_doubt:
        log.add(Kind.HOLE, bytes(100))
    log.batch(5, None)
    log.batch(6, stamp(2, 7, 7, session=True))
    log.batch(7, stamp(1, 10, 19, digest=3), count=2)
    assert log.known() == {
        1: last_batch(stamp(1, 10, 19, digest=3), base=7, count=2),
        2: last_batch(stamp(2, 7, 7, session=True), base=6),
    }


def test_whom_a_whole_snapshot_does_not_name_is_forgotten() -> None:
    log = Log()
    log.batch(0, stamp(1, 0, 0))
    log.batch(1, stamp(2, 0, 0))
    remembered = last_batch(stamp(2, 0, 0), base=1)
    log.prologue(remembered)
    assert log.known() == {2: remembered}
    log.prologue()
    assert log.known() == {}


@pytest.mark.parametrize("lost", [1, 2])
def test_a_snapshot_with_a_hole_makes_nobody_forgotten(lost: int) -> None:
    log = Log()
    log.batch(0, stamp(1, 0, 0))
    log.prologue(last_batch(stamp(2, 0, 3), base=1), leave_out=lost)
    known = log.known()
    assert known[1] == last_batch(stamp(1, 0, 0))
    assert (2 in known) == (lost != 1)
