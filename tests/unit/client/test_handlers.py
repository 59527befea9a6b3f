from dataclasses import dataclass
from typing import Any

import pytest

from pydanube.client.app import App
from pydanube.client.codecs import BYTES
from pydanube.client.handlers import returned_by, wanted_by
from pydanube.client.message import ReceivedMessage
from pydanube.errors import InvalidRequest


@dataclass
class Order:
    item: str


def takes_value(order: Order) -> None: ...
def takes_message(message: ReceivedMessage) -> None: ...
def takes_typed_message(message: ReceivedMessage[Order]) -> None: ...
def takes_many(orders: list[Order], limit: int = 3) -> None: ...
def takes_anything(order) -> None: ...  # type: ignore[no-untyped-def]
def takes_nothing() -> None: ...
def takes_two(order: Order, other: Order) -> None: ...
def gives_order(order: bytes) -> Order | None: ...


@pytest.mark.parametrize(
    ("handler", "wants"),
    [
        (takes_value, "value"),
        (takes_typed_message, "message"),
        (takes_many, "values"),
    ],
)
def test_the_annotation_says_what_is_wanted(handler: Any, wants: str) -> None:
    found, codec = wanted_by(handler, None)
    assert found == wants
    assert codec.decode(b'{"item":"tea"}') == Order("tea")


def test_a_type_that_is_given_stands_in_for_an_annotation() -> None:
    assert wanted_by(takes_message, None) == ("message", BYTES)
    assert wanted_by(takes_anything, bytes) == ("value", BYTES)
    assert wanted_by(takes_message, Order)[1].encode(Order("tea")) == b'{"item":"tea"}'


@pytest.mark.parametrize("handler", [takes_anything, takes_nothing, takes_two])
def test_a_handler_that_cannot_be_called_is_refused_at_once(handler: Any) -> None:
    with pytest.raises(InvalidRequest, match=handler.__name__):
        App().subscriber("/default/orders")(handler)


def test_what_is_returned_is_published_as_its_annotation_says() -> None:
    assert returned_by(gives_order, None).encode(Order("tea")) == b'{"item":"tea"}'
    with pytest.raises(InvalidRequest, match="takes_value"):
        returned_by(takes_value, None)


def test_decorated_functions_stay_as_they_are() -> None:
    assert App().subscriber("/default/orders")(takes_value) is takes_value
    assert App().publisher("/default/orders")(gives_order) is gives_order
    with pytest.raises(InvalidRequest, match="concurrency"):
        App().subscriber("/default/orders", concurrency=0)(takes_value)
