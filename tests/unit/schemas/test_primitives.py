"""Bytes, text and numbers."""

import pyarrow as pa
import pytest

from pydanube.schemas.catalog import load_format
from pydanube.schemas.errors import InvalidSchema
from pydanube.schemas.format import Failure, Schema, SchemaTools


def schema(name: str) -> Schema:
    return load_format(name, SchemaTools()).parse(b"")


@pytest.mark.parametrize("name", ["bytes", "string", "number"])
def test_the_fingerprint_is_the_name(name: str) -> None:
    assert schema(name).fingerprint == name
    assert load_format(name, SchemaTools()).parse(b"whatever").fingerprint == name


@pytest.mark.parametrize("name", ["bytes", "string", "number"])
def test_a_long_definition_is_somebody_elses(name: str) -> None:
    with pytest.raises(InvalidSchema, match="needs no definition"):
        load_format(name, SchemaTools()).parse(b"x" * 1000)


def test_bytes_may_be_anything_but_absent() -> None:
    assert schema("bytes").validator().failures([b"", b"\xff"]) == []
    assert schema("bytes").validator().failures([b"", None]) == [
        Failure(1, "the payload is absent")
    ]


def test_text_is_utf8() -> None:
    payloads = [b"a", b"\xff", None, "ü".encode(), b"a\xc3"]
    assert schema("string").validator().failures(payloads) == [
        Failure(1, "not UTF-8: invalid start byte at byte 0"),
        Failure(2, "the payload is absent"),
        Failure(4, "not UTF-8: unexpected end of data at byte 1"),
    ]
    decoded = schema("string").decode(payloads)
    assert decoded.values.to_pylist() == ["a", None, None, "ü", None]
    assert [failure.row for failure in decoded.failures] == [1, 2, 4]


def test_numbers_have_four_or_eight_bytes() -> None:
    column = pa.array([b"1234", b"12345678", b"", b"123", None])
    assert schema("number").validator().failures(column) == [
        Failure(2, "0 bytes are not 4 or 8"),
        Failure(3, "3 bytes are not 4 or 8"),
        Failure(4, "the payload is absent"),
    ]
    assert schema("number").validator().failures(column[:2]) == []
    assert schema("number").validator().failures([]) == []


def test_columns_of_several_chunks_and_kinds_are_taken() -> None:
    chunked = pa.chunked_array(
        [pa.array([b"a"], pa.large_binary()), pa.array([b"b"], pa.large_binary())]
    )
    assert schema("string").decode(chunked).values.to_pylist() == ["a", "b"]
    assert schema("bytes").spark_ddl() == "BINARY"
    assert schema("string").spark_ddl() == "STRING"
