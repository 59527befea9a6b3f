import subprocess
import sys
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from pydanube.client.codecs import codec_for
from pydanube.client.errors import UndecodablePayload
from pydanube.errors import InvalidRequest


@dataclass
class Order:
    item: str
    pieces: int


class Struct(msgspec.Struct):
    item: str
    pieces: int


class Model(pydantic.BaseModel):
    item: str
    pieces: int


class Typed(TypedDict):
    item: str
    pieces: int


ORDERS: list[tuple[Any, Any]] = [
    (Order, Order("tea", 2)),
    (Struct, Struct("tea", 2)),
    (Model, Model(item="tea", pieces=2)),
    (Typed, {"item": "tea", "pieces": 2}),
    (dict, {"item": "tea", "pieces": 2}),
    (Order | None, Order("tea", 2)),
    (Model | None, Model(item="tea", pieces=2)),
]


@pytest.mark.parametrize(("kind", "value"), ORDERS, ids=str)
def test_a_value_comes_back_as_it_was(kind: Any, value: Any) -> None:
    codec = codec_for(kind)
    payload = codec.encode(value)
    assert msgspec.json.decode(payload) == {"item": "tea", "pieces": 2}
    assert codec.decode(payload) == value


@pytest.mark.parametrize(("kind", "value"), ORDERS, ids=str)
def test_payloads_that_are_no_json_are_refused(kind: Any, value: Any) -> None:
    for payload in (b"", b"{", b"\xff", b'{"item": "\xff", "pieces": 1}'):
        with pytest.raises(UndecodablePayload):
            codec_for(kind).decode(payload)


@pytest.mark.parametrize("kind", [Order, Struct, Model, Typed, list[Model]])
def test_payloads_of_another_shape_are_refused_by_the_name_of_the_field(kind: Any) -> None:
    payload = b'{"item": "tea", "pieces": "two"}'
    with pytest.raises(UndecodablePayload, match=r"pieces|list"):
        codec_for(kind).decode(payload)


@pytest.mark.parametrize("kind", [bytes, str, Order, Struct, Model, Typed, dict, list[Model]])
def test_a_value_of_another_type_is_not_encoded(kind: Any) -> None:
    with pytest.raises(InvalidRequest):
        codec_for(kind).encode(object())


def test_bytes_and_text_travel_as_they_are() -> None:
    assert codec_for(bytes).encode(b"\xff") == b"\xff"
    assert codec_for(bytes).encode(bytearray(b"a")) == b"a"  # type: ignore[arg-type]
    assert codec_for(str).encode("né") == "né".encode()
    assert codec_for(str).decode("né".encode()) == "né"
    with pytest.raises(UndecodablePayload, match="UTF-8"):
        codec_for(str).decode(b"\xff")


@pytest.mark.parametrize("kind", [Order, Struct, Model, Typed])
def test_every_shape_has_a_json_schema(kind: Any) -> None:
    codec = codec_for(kind)
    schema = codec.json_schema()
    assert codec.schema_type == "json_schema"
    assert schema is not None
    shape = schema["$defs"][kind.__name__] if "$defs" in schema else schema
    assert shape["properties"]["pieces"]["type"] == "integer"
    assert codec_for(bytes).json_schema() is None
    assert codec_for(str).schema_type == "string"


@pytest.mark.parametrize("kind", [object(), complex, type("Thing", (), {}), lambda: 1])
def test_a_type_without_a_shape_is_refused_at_once(kind: Any) -> None:
    with pytest.raises(InvalidRequest, match="dataclass"):
        codec_for(kind)


def test_pydantic_is_not_loaded_for_those_who_do_not_use_it() -> None:
    code = (
        "import sys, dataclasses; from pydanube.client.codecs import codec_for;"
        "kind = dataclasses.make_dataclass('Order', [('item', str)]);"
        "codec_for(kind).decode(codec_for(kind).encode(kind('tea')));"
        "assert 'pydantic' not in sys.modules and 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
