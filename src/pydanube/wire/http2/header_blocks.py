"""Header blocks: decoded by hpack and remembered by their bytes, written as literals.

A block that leaves the dynamic table as it found it means the same until the table changes, so
its meaning is kept under its bytes: a client that repeats a call pays for decoding once. Our own
blocks never use the dynamic table, so they can be written in advance.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable
from typing_extensions import override

from pydanube.wire.http2.errors import ConnectionFault, ErrorCode
from pydanube.wire.http2.huffman import UnreadableString, plain_block, write_integer

Field = tuple[bytes, bytes]
Head = TypeVar("Head")

CACHED_BLOCKS_MAX: Final = 256
LONG_BLOCK_BYTES: Final = 1024

FORGET_TABLE: Final = b"\x20"
"""Tells the peer's decoder that our dynamic table has size 0. Our first block starts with it, so
that no later SETTINGS_HEADER_TABLE_SIZE of the peer asks for anything more."""


class _WatchedTable(HeaderTable):
    """A dynamic table that counts its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.additions = 0

    @override
    def add(self, name: bytes, value: bytes) -> None:
        self.additions += 1
        super().add(name, value)


class HeaderBlocks(Generic[Head]):
    """Turns header blocks into heads, in the order in which they arrive.

    `build` makes a head of the fields; what it raises is not remembered. Every block of the
    connection must pass through here, since each may change the meaning of the next.
    """

    def __init__(self, list_bytes_max: int, build: Callable[[Sequence[Field]], Head]) -> None:
        self._build = build
        self._table = _WatchedTable()
        self._decoder = Decoder(max_header_list_size=list_bytes_max)
        self._decoder.header_table = self._table
        self.known: dict[bytes, Head] = {}
        """Heads by block; only to be looked into."""

    def head(self, block: bytes) -> Head:
        """Return what `block` means."""
        head = self.known.get(block)
        if head is None:
            before = self._state()
            head = self._build(self.fields(block))
            if self._state() == before:
                if len(self.known) >= CACHED_BLOCKS_MAX:
                    self.known.clear()
                self.known[block] = head
        return head

    def fields(self, block: bytes) -> Sequence[Field]:
        """Return the fields of `block` without remembering them."""
        before = self._state()
        try:
            return [(field[0], field[1]) for field in self._decode(block)]
        finally:
            if self._state() != before:
                self.known.clear()

    def _decode(self, block: bytes) -> Sequence[Field]:
        try:
            if len(block) > LONG_BLOCK_BYTES:
                block = plain_block(block)
            return list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as fault:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, "the headers are too large"
            ) from fault
        except (HPACKError, UnreadableString) as fault:
            raise ConnectionFault(
                ErrorCode.COMPRESSION_ERROR, "a header block cannot be decoded"
            ) from fault

    def _state(self) -> tuple[int, int]:
        return self._table.additions, self._table.maxsize


_STATIC_NAMES: Final = {
    name: index for index, (name, _) in reversed(list(enumerate(HeaderTable.STATIC_TABLE, start=1)))
}
_STATIC_FIELDS: Final = {
    field: index for index, field in enumerate(HeaderTable.STATIC_TABLE, start=1) if field[1]
}


def encode_fields(fields: Sequence[Field]) -> bytes:
    """Return a block that any decoder reads in any state, and that changes no dynamic table."""
    return b"".join(_encode_field(name, value) for name, value in fields)


def _encode_field(name: bytes, value: bytes) -> bytes:
    index = _STATIC_FIELDS.get((name, value))
    if index is not None:
        return write_integer(0x80, 7, index)
    index = _STATIC_NAMES.get(name)
    start = write_integer(0, 4, index) if index is not None else b"\x00" + _string(name)
    return start + _string(value)


def _string(value: bytes) -> bytes:
    return write_integer(0, 7, len(value)) + value
