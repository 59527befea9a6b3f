"""Failures of pyarrow's Flight client as errors of ours."""

import pytest

from pydanube.errors import (
    AccessDenied,
    Conflict,
    Corruption,
    DanubeError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from pydanube.wire.flight.blocking import Credentials, error_of, location_of

CONTEXT = ". gRPC client debug context: NOT_FOUND:x. Client context: OK"


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("Flight returned not found error, with message: no x" + CONTEXT, NotFound, "no x"),
        ("Flight returned invalid argument error, with message: bad", InvalidRequest, "bad"),
        ("gRPC returned precondition failed error, with message: p", Conflict, "p"),
        ("gRPC returned resource exhausted error, with message: r", Overloaded, "r"),
        ("gRPC returned out-of-range error, with message: gone", Corruption, "gone"),
        ("Flight returned unauthenticated error, with message: who?", AccessDenied, "who?"),
        ("Flight returned timeout error, with message: late", Unavailable, "http://b: late"),
        ("gRPC cancelled call, with message: c", Unavailable, "http://b: c"),
        ("Flight returned internal error, with message: bug", DanubeError, "bug"),
        ("connection reset by peer", Unavailable, "http://b: connection reset by peer"),
    ],
)
def test_the_brokers_words_and_their_kind_are_kept(text, kind, words):
    error = error_of("http://b", OSError(text))
    assert type(error) is kind
    assert str(error) == words


@pytest.mark.parametrize(
    ("url", "tls", "location"),
    [
        ("http://a:1", False, "grpc://a:1"),
        ("http://a:1/", True, "grpc+tls://a:1"),
        ("https://a:1", False, "grpc+tls://a:1"),
        ("a:1", False, "grpc://a:1"),
    ],
)
def test_addresses(url, tls, location):
    assert location_of(url, tls=tls) == location


def test_an_address_that_is_none_is_refused():
    with pytest.raises(InvalidRequest, match="ftp://a"):
        location_of("ftp://a", tls=False)


def test_a_token_is_never_printed_and_needs_tls():
    credentials = Credentials(token="s3cret")
    assert "s3cret" not in repr(credentials)
    assert credentials.need_tls
