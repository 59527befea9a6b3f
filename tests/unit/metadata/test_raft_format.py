"""The bytes of a Raft node: what is written is read, and what is damaged is noticed."""

import pytest

from pydanube.errors import Corruption
from pydanube.metadata.founding import plan_founding
from pydanube.metadata.raft.entries import (
    EntryKind,
    HardState,
    LogEntry,
    Snapshot,
    Stored,
    founded,
)
from pydanube.metadata.raft.membership import Membership
from pydanube.metadata.raft_calls import NodeInfo, SnapshotPiece
from pydanube.metadata.raft_format import (
    encode_closed,
    encode_group,
    encode_log_start,
    encode_snapshot_file,
    join,
    log_name,
    log_position,
    read_log,
    read_snapshot_file,
)
from pydanube.metadata.transport import SNAPSHOT_BYTES_MAX, SnapshotPieces

MEMBERS = Membership({7: "a:1"}, {8: "b:2"})
STORED = founded(MEMBERS, b"state")


def entry(index: int, term: int = 1) -> LogEntry:
    return LogEntry(index, term, EntryKind.COMMAND, b"%d/%d" % (index, term))


def written(start: int = 1000) -> bytes:
    data = b"".join(encode_log_start(7, STORED, start))
    data += b"".join(encode_group(HardState(2, 7), [entry(2), entry(3)], start + len(data)))
    return data + b"".join(encode_group(None, [entry(3, 2)], start + len(data)))


def test_a_log_is_read_as_it_was_written_and_later_entries_replace_earlier_ones() -> None:
    log = read_log(written(), 1000, "log")
    assert (log.node, log.base_index, log.base_term) == (7, 1, 1)
    assert log.hard_state == HardState(2, 7)
    assert log.entries == (entry(2), entry(3, 2))
    assert log.end == 1000 + len(written())


def test_names_of_logs_carry_their_position() -> None:
    assert log_position(log_name(42)) == 42
    assert log_position("raft-42.log") is None


def test_every_cut_of_the_last_group_leaves_the_groups_before() -> None:
    data = written()
    before = len(data) - len(b"".join(encode_group(None, [entry(3, 2)], 0)))
    for end in range(before, len(data)):
        log = read_log(data[:end], 1000, "log")
        assert log.entries == (entry(2), entry(3)), end


def test_every_flipped_bit_before_a_later_group_is_noticed() -> None:
    data = written() + b"".join(encode_closed(1000 + len(written())))
    for position in range(len(written())):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(Corruption):
            read_log(bytes(damaged), 1000, "log")


def test_a_log_without_its_beginning_or_with_a_gap_is_refused() -> None:
    with pytest.raises(Corruption, match="does not begin"):
        read_log(b"", 0, "log")
    data = b"".join(encode_log_start(7, STORED, 0))
    with pytest.raises(Corruption, match="without the one before"):
        read_log(data + b"".join(encode_group(None, [entry(5)], len(data))), 0, "log")


def test_a_snapshot_is_read_as_it_was_written_and_damage_is_noticed() -> None:
    snapshot = Snapshot(9, 3, MEMBERS, b"x" * 1000)
    data = encode_snapshot_file(snapshot)
    assert read_snapshot_file(data, "file") == snapshot
    for damaged in (data[:-1], data[:-2] + b"zz", b"", data + b"more"):
        with pytest.raises(Corruption):
            read_snapshot_file(damaged, "file")


def test_a_log_that_lacks_the_snapshots_last_entry_was_to_be_replaced() -> None:
    log = read_log(written(), 1000, "log")
    covered = Snapshot(2, 1, MEMBERS, b"")
    assert join(covered, log) == Stored(HardState(2, 7), covered, 1, 1, log.entries)
    for ahead in (Snapshot(9, 3, MEMBERS, b""), Snapshot(3, 1, MEMBERS, b"")):
        assert join(ahead, log) == Stored(HardState(2, 7), ahead, ahead.index, ahead.term, ())


def piece(start: int, data: bytes, size: int = 5, sender: int = 1) -> SnapshotPiece:
    return SnapshotPiece("a:1", 4, sender, 2, 9, 3, MEMBERS, size, start, data)


def test_pieces_become_a_snapshot_when_all_have_come_in_order() -> None:
    pieces = SnapshotPieces()
    assert pieces.add(piece(0, b"abc")) is None
    message = pieces.add(piece(3, b"de"))
    assert message is not None
    assert message.snapshot == Snapshot(9, 3, MEMBERS, b"abcde")


def test_missing_mixed_and_huge_pieces_are_refused() -> None:
    pieces = SnapshotPieces()
    pieces.add(piece(0, b"abc"))
    with pytest.raises(ValueError, match="missing"):
        pieces.add(piece(4, b"e"))
    pieces.add(piece(0, b"abc"))
    with pytest.raises(ValueError, match="missing"):
        pieces.add(piece(3, b"de", sender=3))
    with pytest.raises(ValueError, match="exceeds"):
        pieces.add(piece(0, b"", size=SNAPSHOT_BYTES_MAX + 1))


def info(node: int, term: int = 0) -> NodeInfo:
    return NodeInfo(node, f"n{node}:1", term, 0, Membership({}, {}))


def test_the_lowest_number_founds_and_nobody_founds_beside_a_cluster() -> None:
    assert plan_founding(info(2), [info(5), info(3)]) == Membership(
        {2: "n2:1", 3: "n3:1", 5: "n5:1"}, {}
    )
    assert plan_founding(info(5), [info(2), info(3)]) is None
    assert plan_founding(info(2), [info(5, term=1), info(3)]) is None
