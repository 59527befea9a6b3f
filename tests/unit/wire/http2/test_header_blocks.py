import pytest
from hpack import Decoder, Encoder

from pydanube.wire.http2.errors import ConnectionFault, ErrorCode
from pydanube.wire.http2.header_blocks import (
    CACHED_BLOCKS_MAX,
    FORGET_TABLE,
    HeaderBlocks,
    encode_fields,
)

PLAIN = [(b":method", b"POST"), (b"x-name", b"value")]


class Built:
    """Counts how often a head was made."""

    def __init__(self):
        self.count = 0

    def __call__(self, fields):
        self.count += 1
        return tuple(fields)


@pytest.fixture
def build():
    return Built()


def test_a_block_that_repeats_is_decoded_once(build):
    blocks = HeaderBlocks(4096, build)
    block = encode_fields(PLAIN)
    assert blocks.head(block) == blocks.head(block) == tuple(PLAIN)
    assert build.count == 1


def test_a_block_that_changes_the_table_is_not_remembered_and_drops_the_others(build):
    blocks = HeaderBlocks(4096, build)
    encoder = Encoder()
    by_name = encode_fields(PLAIN)
    blocks.head(by_name)
    first = encoder.encode(PLAIN)
    assert blocks.head(first) == tuple(PLAIN)
    assert blocks.known == {}
    # Its bytes again would add its entry again: what they mean is the same, what they do is not.
    assert blocks.head(first) == tuple(PLAIN)
    assert blocks.known == {}


def test_an_indexed_block_means_what_the_table_holds_now(build):
    blocks = HeaderBlocks(4096, build)
    newest = b"\xbe"
    for value in (b"one", b"two", b"three"):
        blocks.head(b"\x40\x01a" + bytes([len(value)]) + value)
        assert blocks.head(newest) == ((b"a", value),)
        assert blocks.head(newest) == ((b"a", value),)
    assert build.count == 6


def test_a_table_size_update_drops_what_is_remembered(build):
    blocks = HeaderBlocks(4096, build)
    blocks.head(b"\x40\x01a\x01b")
    assert blocks.head(b"\xbe") == ((b"a", b"b"),)
    blocks.fields(FORGET_TABLE)
    with pytest.raises(ConnectionFault) as fault:
        blocks.head(b"\xbe")
    assert fault.value.code is ErrorCode.COMPRESSION_ERROR


def test_the_memory_of_blocks_is_bounded(build):
    blocks = HeaderBlocks(4096, build)
    for number in range(3 * CACHED_BLOCKS_MAX):
        blocks.head(encode_fields([(b"n", b"%d" % number)]))
        assert len(blocks.known) <= CACHED_BLOCKS_MAX


def test_a_head_that_cannot_be_built_is_not_remembered():
    def refuse(fields):
        raise KeyError

    blocks = HeaderBlocks(4096, refuse)
    with pytest.raises(KeyError):
        blocks.head(encode_fields(PLAIN))
    assert blocks.known == {}


def test_headers_beyond_their_limit_are_refused_while_unpacking(build):
    blocks = HeaderBlocks(4096, build)
    blocks.head(Encoder().encode([(b"a", b"x" * 1_000)], huffman=False))
    with pytest.raises(ConnectionFault) as fault:
        blocks.head(b"\xbe" * 100)
    assert fault.value.code is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("block", [b"\x80", b"\xff\xff\xff\xff\xff\xff", b"\x00", b"\x00\x05ab"])
def test_a_damaged_block_is_a_fault_of_the_connection(build, block):
    with pytest.raises(ConnectionFault) as fault:
        HeaderBlocks(4096, build).head(block)
    assert fault.value.code is ErrorCode.COMPRESSION_ERROR


def test_what_is_written_changes_no_table_and_reads_as_it_was():
    fields = [
        (b":status", b"200"),
        (b":path", b"/other"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"0"),
        (b"x" * 200, b"y" * 20_000),
        (b"empty", b""),
    ]
    decoder = Decoder(max_header_list_size=100_000)
    decoder.header_table_size = 0
    assert list(decoder.decode(encode_fields(fields), raw=True)) == fields
    assert not decoder.header_table.dynamic_entries
    assert encode_fields([(b":status", b"200")]) == b"\x88"
