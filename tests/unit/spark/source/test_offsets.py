"""Offsets as Spark keeps them."""

import json

import pytest

from pydanube.errors import InvalidRequest
from pydanube.spark.source.offsets import StreamOffset, initial_offset, read_offset, write_offset


def test_the_same_position_is_the_same_text():
    one = StreamOffset(grid=8, ids={"b": "2", "a": "1"}, next={"b": 5, "a": 0})
    other = StreamOffset(grid=8, ids={"a": "1", "b": "2"}, next={"a": 0, "b": 5})
    assert json.dumps(write_offset(one)) == json.dumps(write_offset(other))


def test_the_text_is_the_documented_one():
    offset = StreamOffset(grid=65536, ids={"/default/orders": "b41f"}, next={"/default/orders": 9})
    assert json.dumps(write_offset(offset)) == (
        '{"v": 1, "grid": 65536, "from": {}, "ids": {"/default/orders": "b41f"}, '
        '"next": {"/default/orders": 9}}'
    )


def test_what_was_written_is_read_back():
    offset = initial_offset({"a": 0, "b": 7}, {"a": "1", "b": "2"})
    assert read_offset(json.loads(json.dumps(write_offset(offset)))) == offset
    assert offset.is_initial


@pytest.mark.parametrize(
    ("stored", "words"),
    [({"v": 2}, "version 2"), ({}, "version None"), ({"v": 1, "grid": "x"}, "cannot be read")],
)
def test_offsets_of_another_version_are_refused(stored, words):
    with pytest.raises(InvalidRequest, match=words):
        read_offset(stored)
