import pytest

from pydanube.errors import InvalidRequest
from pydanube.wire.http2.addresses import Address, read_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("host:1", Address("host", 1, False)),
        ("http://host:1/", Address("host", 1, False)),
        ("https://host:1", Address("host", 1, True)),
        ("http://[::1]:6650", Address("::1", 6650, False)),
    ],
)
def test_an_address_is_read_in_each_form(url, address):
    assert read_address(url) == address


def test_an_address_of_six_is_shown_in_brackets():
    assert Address("::1", 6650, False).authority == "[::1]:6650"
    assert Address("host", 1, True).authority == "host:1"


@pytest.mark.parametrize("url", ["", "host", "http://", "ftp://h:1", "h:x", "http://h:1/p", "h:0"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(InvalidRequest, match="http://host:port"):
        read_address(url)
