"""What etcd says, and what it means to whoever asked."""

import pytest

from pydanube.errors import (
    AccessDenied,
    DanubeError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from pydanube.wire.calls import CallNotSent, CallRefused, StatusCode
from pydanube.wire.danube.generated import Etcd_pb2 as etcd
from pydanube.wire.etcd.messages import News, Told, decode, error_of, news


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (StatusCode.NOT_FOUND, "etcdserver: requested lease not found", NotFound),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn", InvalidRequest),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: too many operations in txn", InvalidRequest),
        (StatusCode.RESOURCE_EXHAUSTED, "grpc: message larger than max", InvalidRequest),
        (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Overloaded),
        (StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", AccessDenied),
        (StatusCode.UNAVAILABLE, "etcdserver: leader changed", Unavailable),
        (StatusCode.DEADLINE_EXCEEDED, "the deadline has passed", Unavailable),
        (StatusCode.UNKNOWN, "?", Unavailable),
    ],
)
def test_a_refusal_becomes_the_error_that_says_what_to_do(
    code: StatusCode, text: str, kind: type[DanubeError]
) -> None:
    error = error_of(CallRefused(code, text))
    assert type(error) is kind
    assert text in str(error)


def test_only_what_never_left_is_said_not_to_have_happened() -> None:
    sent = error_of(CallRefused(StatusCode.UNAVAILABLE, "the connection was lost"))
    unsent = error_of(CallNotSent(StatusCode.UNAVAILABLE, "cannot reach 127.0.0.1:2379"))
    assert "may have happened" in str(sent)
    assert "nothing was done" in str(unsent)


def test_limits_of_the_server_are_named_with_their_flags() -> None:
    error = error_of(CallRefused(StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large"))
    assert "--max-request-bytes" in str(error)


def test_a_watch_tells_writes_deletions_and_its_end() -> None:
    answer = etcd.WatchResponse(compact_revision=9)
    put = etcd.KeyValue(key=b"a", value=b"", mod_revision=3, lease=4)
    answer.events.add(type=etcd.Event.PUT, kv=put)
    answer.events.add(type=etcd.Event.DELETE, kv=etcd.KeyValue(key=b"b", mod_revision=3))
    changes = [Told(b"a", b"", 3, 4), Told(b"b", None, 3)]
    assert news(answer.SerializeToString()) == News(changes, 9, None)
    ended = etcd.WatchResponse(canceled=True, cancel_reason="no leader")
    assert news(ended.SerializeToString()) == News([], 0, "no leader")


def test_an_answer_that_is_none_is_no_crash() -> None:
    with pytest.raises(Unavailable, match="no RangeResponse"):
        decode(etcd.RangeResponse, b"\xff\xff\xff")
