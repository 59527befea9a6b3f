"""Header blocks freed of Huffman's code, against hpack as a judge."""

import pytest
from hpack import Decoder, Encoder, HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import given
from hypothesis import strategies as st

from pydanube.wire.http2.huffman import UnreadableString, plain_block, unpack_string

ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
FIELDS = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([b":path", b"te", b"x"]), st.binary(max_size=300)),
        st.binary(max_size=300),
        st.booleans(),
    ),
    max_size=8,
)


def decode(block):
    """Return the fields, or None where hpack refuses the block."""
    try:
        return Decoder().decode(block, raw=True)
    except HPACKDecodingError:
        return None


@given(st.binary(max_size=500))
def test_a_string_comes_back(string):
    assert unpack_string(ENCODER.encode(string)) == string


@given(st.binary(max_size=40))
def test_any_bytes_are_read_as_hpack_reads_them(packed):
    try:
        expected = decode_huffman(packed)
    except HPACKDecodingError:
        with pytest.raises(UnreadableString):
            unpack_string(packed)
    else:
        assert unpack_string(packed) == expected


@given(st.lists(FIELDS, max_size=3))
def test_a_plain_block_means_the_same_and_leaves_the_same_table(lists):
    encoder, coded, plain = Encoder(), Decoder(), Decoder()
    for fields in lists:
        block = encoder.encode(fields, huffman=True)
        assert plain.decode(plain_block(block), raw=True) == coded.decode(block, raw=True)


@given(FIELDS, st.data())
def test_a_cut_block_is_a_fault_before_and_after(fields, data):
    block = Encoder().encode(fields, huffman=True)
    cut = block[: data.draw(st.integers(0, len(block)))]
    assert decode(plain_block(cut)) == decode(cut)


@given(st.binary(max_size=60))
def test_any_block_means_the_same_or_is_a_fault(block):
    try:
        plain = plain_block(block)
    except UnreadableString:
        assert decode(block) is None
    else:
        assert decode(plain) == decode(block)


def test_a_number_without_end_is_left_to_the_judge():
    for block in (b"\xff" * 16_000, b"\x3f" + b"\xff" * 16_000, b"\x00\x7f" + b"\xff" * 16_000):
        assert plain_block(block) == block
        assert decode(block) is None
