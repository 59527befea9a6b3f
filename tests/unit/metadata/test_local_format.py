import pytest

from pydanube.errors import Corruption, NotSupported
from pydanube.metadata.commands import Command, NextId, Transact, encode_command
from pydanube.metadata.local_format import (
    encode_closed,
    encode_commands,
    encode_snapshot_file,
    log_name,
    log_position,
    read_log,
    read_snapshot_file,
)
from pydanube.metadata.store import Put
from pydanube.storage.frames import encode_frame

START = 1_000
GROUPS: list[list[Command]] = [
    [NextId("/a"), Transact((), (Put("/b", b"1"),))],
    [NextId("/c")],
    [NextId("/d"), NextId("/e")],
]
COMMANDS = [command for group in GROUPS for command in group]


def write_log() -> tuple[bytes, list[int]]:
    """Return the bytes of a log, and where in them each group ends."""
    data, ends = b"", []
    for group in GROUPS:
        data += b"".join(encode_commands(list(map(encode_command, group)), START + len(data)))
        ends.append(len(data))
    return data, ends


def flip(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << (bit % 8)
    return bytes(flipped)


def test_names_of_logs_are_sorted_like_their_positions():
    assert log_name(42) == "metadata-00000000000000000042.log"
    assert log_position(log_name(42)) == 42
    assert sorted([log_name(9), log_name(10)]) == [log_name(9), log_name(10)]
    for name in ("metadata-42.log", "metadata.snapshot", log_name(42) + ".bak"):
        assert log_position(name) is None


def test_a_log_is_read_as_it_was_written():
    data, ends = write_log()
    contents = read_log(data, START, "log")
    assert (contents.commands, contents.end) == (COMMANDS, START + ends[-1])


def test_a_log_cut_anywhere_gives_the_commands_before_the_cut():
    data, _ = write_log()
    for cut in range(len(data)):
        contents = read_log(data[:cut], START, "log")
        assert contents.commands == COMMANDS[: len(contents.commands)]
        assert contents.end <= START + cut
        assert len(contents.commands) < len(COMMANDS)


def test_every_flipped_bit_behind_which_a_group_follows_is_damage():
    data, ends = write_log()
    last_group = ends[-2]
    for bit in range(last_group * 8):
        with pytest.raises(Corruption):
            read_log(flip(data, bit), START, "log")
    # The last group may never have been synced, and then nobody was told of it.
    for bit in range(last_group * 8, len(data) * 8):
        assert len(read_log(flip(data, bit), START, "log").commands) in (3, 4)


def test_every_flipped_bit_of_a_log_closed_in_order_is_damage():
    data, ends = write_log()
    closed = data + b"".join(encode_closed(START + len(data)))
    assert read_log(closed, START, "log").commands == COMMANDS
    for bit in range(ends[-1] * 8):
        with pytest.raises(Corruption):
            read_log(flip(closed, bit), START, "log")


def test_damage_names_the_file_the_place_and_the_next_step():
    data, ends = write_log()
    with pytest.raises(Corruption) as caught:
        read_log(flip(data, (ends[0] + 20) * 8), START, "/data/metadata-1000.log")
    message = str(caught.value)
    assert "/data/metadata-1000.log is damaged at position" in message
    assert f"position {START + ends[0]} (byte {ends[0]} of the file)" in message
    assert f"restore it from a backup, or cut the file to {ends[0]} bytes" in message
    assert read_log(data[: ends[0]], START, "log").commands == GROUPS[0]


def test_sound_frames_with_senseless_payloads_are_damage():
    for kind, payload in ((1, b"\xff"), (9, b"")):
        frame = b"".join(encode_frame(kind, START, START, [payload]))
        with pytest.raises(Corruption, match="at position 1000"):
            read_log(frame, START, "log")


def test_a_newer_version_is_refused_by_name():
    frame = b"".join(encode_frame(1, 0, 0, [b"?"], version=2))
    with pytest.raises(NotSupported, match="newer PyDanube"):
        read_log(frame, 0, "log")
    with pytest.raises(NotSupported, match="newer PyDanube"):
        read_snapshot_file(frame, "snapshot")


@pytest.mark.parametrize("size", [0, 1, 100, 16 * 1024 * 1024, 16 * 1024 * 1024 + 1])
def test_a_snapshot_is_read_as_it_was_written(size: int):
    state = b"s" * size
    assert read_snapshot_file(encode_snapshot_file(77, state), "snapshot") == (77, state)


def test_every_flipped_bit_and_every_cut_of_a_snapshot_is_damage():
    file = encode_snapshot_file(77, b"state")
    for bit in range(len(file) * 8):
        with pytest.raises(Corruption, match="restore it from a backup"):
            read_snapshot_file(flip(file, bit), "snapshot")
    for cut in range(len(file)):
        with pytest.raises(Corruption, match="restore it from a backup"):
            read_snapshot_file(file[:cut], "snapshot")


def test_what_is_no_snapshot_of_ours_is_refused():
    for payload in (b"", b"\x93\xa5other\x00\x00"):
        with pytest.raises(Corruption):
            read_snapshot_file(b"".join(encode_frame(3, 0, 0, [payload])), "snapshot")
    header = encode_snapshot_file(0, b"")
    for kind in (1, 3):
        extra = b"".join(encode_frame(kind, len(header), 0, [b""]))
        with pytest.raises(Corruption):
            read_snapshot_file(header + extra, "snapshot")
