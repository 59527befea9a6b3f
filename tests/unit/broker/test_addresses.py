"""URLs derived from addresses."""

import pytest

from pydanube.broker.addresses import Address, url_beside


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:50051"),
        ("0.0.0.0", "http://north:50051"),
        ("::", "http://north:50051"),
    ],
)
def test_another_port_is_reached_under_the_advertised_host(host: str, url: str) -> None:
    assert url_beside(Address(host, 50051), "http://north:6650") == url


def test_an_ipv6_host_keeps_its_brackets() -> None:
    assert (
        url_beside(Address("0.0.0.0", 1), "http://[2001:db8::1]:6650") == "http://[2001:db8::1]:1"
    )
