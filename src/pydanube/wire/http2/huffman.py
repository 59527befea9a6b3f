"""Long header blocks without Huffman's code, which hpack reads four bits at a time.

Read a byte at a time, from a table that grows as it is needed, a block that is as long as allowed
takes one millisecond instead of three: so little, that others do not notice.
"""

from typing import Final

from hpack.huffman_table import (
    HUFFMAN_COMPLETE,
    HUFFMAN_EMIT_SYMBOL,
    HUFFMAN_FAIL,
    HUFFMAN_TABLE,
)

_CODED: Final = 0x80
_SHIFT_MAX: Final = 28
"""Nothing in a block is so long that it needs more."""
_Step = tuple[int, bytes, bool]
"""The next state (times 256), what the byte adds, and whether the string may end there."""

_steps: Final[dict[int, _Step]] = {}
"""By state times 256 plus byte, so 65,536 at most."""


class UnreadableString(Exception):
    """The bytes are not Huffman's code as RFC 7541 has it."""


def unpack_string(packed: bytes) -> bytes:
    """Return the string, or raise UnreadableString."""
    known = _steps.get
    state, may_end = 0, True
    pieces: list[bytes] = []
    add = pieces.append
    for byte in packed:
        step = known(state | byte)
        if step is None:
            step = _learn(state | byte)
        state, piece, may_end = step
        add(piece)
    if not may_end:
        raise UnreadableString
    return b"".join(pieces)


def _learn(key: int) -> _Step:
    state, byte = divmod(key, 256)
    piece = bytearray()
    may_end = False
    for half in (byte >> 4, byte & 0xF):
        state, flags, symbol = HUFFMAN_TABLE[state * 16 + half]
        if flags & HUFFMAN_FAIL:
            raise UnreadableString
        if flags & HUFFMAN_EMIT_SYMBOL:
            piece.append(symbol)
        may_end = bool(flags & HUFFMAN_COMPLETE)
    step = _steps[key] = (state * 256, bytes(piece), may_end)
    return step


def plain_block(block: bytes) -> bytes:
    """Return a header block that means the same and has no coded strings.

    From where on it is cut, it stays as it is: who decodes it finds the fault. What cannot be
    decoded raises UnreadableString.
    """
    plain = bytearray()
    position = 0
    try:
        while position < len(block):
            field, position = _plain_field(block, position)
            plain += field
    except IndexError:
        plain += block[position:]
    return bytes(plain)


def _plain_field(block: bytes, start: int) -> tuple[bytes, int]:
    """Return one field, or a change of the table, and the position behind it."""
    first = block[start]
    if first & 0x80:
        prefix_bits, strings = 7, 0
    elif first & 0x40:
        prefix_bits, strings = 6, 1
    elif first & 0x20:
        prefix_bits, strings = 5, 0
    else:
        prefix_bits, strings = 4, 1
    index, position = _read_integer(block, start, prefix_bits)
    if strings and not index:
        strings = 2  # The name is not in the table.
    field = block[start:position]
    for _ in range(strings):
        string, position = _plain_string(block, position)
        field += string
    return field, position


def _plain_string(block: bytes, start: int) -> tuple[bytes, int]:
    length, position = _read_integer(block, start, 7)
    end = position + length
    if end > len(block):
        raise IndexError
    if not block[start] & _CODED:
        return block[start:end], end
    string = unpack_string(block[position:end])
    return write_integer(0, 7, len(string)) + string, end


def _read_integer(block: bytes, position: int, prefix_bits: int) -> tuple[int, int]:
    """Return an integer as RFC 7541 section 5.1 writes it, and the position behind it."""
    prefix_max = (1 << prefix_bits) - 1
    value = block[position] & prefix_max
    position += 1
    if value < prefix_max:
        return value, position
    shift = 0
    while True:
        if shift > _SHIFT_MAX:
            raise IndexError
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def write_integer(first: int, prefix_bits: int, value: int) -> bytes:
    """Return an integer as RFC 7541 section 5.1 writes it, behind the bits of `first`."""
    prefix_max = (1 << prefix_bits) - 1
    if value < prefix_max:
        return bytes([first | value])
    written = bytearray([first | prefix_max])
    value -= prefix_max
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
