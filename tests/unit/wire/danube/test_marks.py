"""The mark of a delivery, on its way to a client and back."""

from urllib.parse import urlsplit

import pytest

from pydanube.wire.danube.marks import mark_of, marked_address


def test_a_mark_comes_back() -> None:
    assert mark_of(marked_address("http://127.0.0.1:6650", "1f-18c.5.1")) == "1f-18c.5.1"


def test_a_marked_address_leads_to_the_same_broker() -> None:
    assert urlsplit(marked_address("https://broker-1:6650", "1f-18c")).netloc == "broker-1:6650"


@pytest.mark.parametrize("address", ["", "http://127.0.0.1:6650", "http://127.0.0.1:6650/"])
def test_an_address_that_a_producer_wrote_has_none(address: str) -> None:
    assert mark_of(address) is None
