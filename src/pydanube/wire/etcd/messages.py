"""What is said to etcd and what it answers, as our own types; and which errors stand for what."""

from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from msgspec import Struct

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

_Kind = TypeVar("_Kind", bound=Message)


class Stored(Struct, frozen=True):
    """A key's value in etcd."""

    key: bytes
    value: bytes
    revision: int
    lease: int
    """0: bound to none."""


class Page(Struct, frozen=True):
    """Keys in order, as they were at one revision of the whole store."""

    entries: list[Stored]
    revision: int
    more: bool


class Write(Struct, frozen=True):
    """A key to write, or, without a value, to delete."""

    key: bytes
    value: bytes | None
    lease: int = 0


class Outcome(Struct, frozen=True):
    """What became of a transaction."""

    revision: int
    changed: bool
    """Whether any key was written or deleted; then `revision` is that of the change."""
    found: list[int] | None
    """None if it was done; else the revisions found for its conditions (0: absent)."""


class Told(Struct, frozen=True):
    """A change that a watch tells; without a value the key was deleted."""

    key: bytes
    value: bytes | None
    revision: int
    lease: int = 0


class News(Struct, frozen=True):
    """One message of a watch."""

    changes: list[Told]
    """In order; all changes of one revision come in one message."""
    compacted_revision: int = 0
    """Not 0: what was asked for is older than this and gone."""
    ended: str | None = None
    """Why etcd has ended the watch."""


def transaction(conditions: Sequence[tuple[bytes, int]], writes: Sequence[Write]) -> bytes:
    """Return a transaction that on failure reads what its conditions name."""
    request = etcd.TxnRequest()
    for key, revision in conditions:
        request.compare.add(target=etcd.Compare.MOD, key=key, mod_revision=revision)
        request.failure.add(request_range=etcd.RangeRequest(key=key, keys_only=True))
    for write in writes:
        if write.value is None:
            delete = etcd.DeleteRangeRequest(key=write.key)
            request.success.add(request_delete_range=delete)
        else:
            put = etcd.PutRequest(key=write.key, value=write.value, lease=write.lease)
            request.success.add(request_put=put)
    return request.SerializeToString()


def outcome(reply: bytes) -> Outcome:
    """Return what became of a transaction."""
    answer = decode(etcd.TxnResponse, reply)
    if not answer.succeeded:
        found = [one.response_range.kvs for one in answer.responses]
        revisions = [kvs[0].mod_revision if kvs else 0 for kvs in found]
        return Outcome(answer.header.revision, False, revisions)
    changed = any(
        one.HasField("response_put") or one.response_delete_range.deleted
        for one in answer.responses
    )
    return Outcome(answer.header.revision, changed, None)


def count_further(key: bytes) -> bytes:
    """Return a transaction that writes a key and reads how often that was done."""
    request = etcd.TxnRequest()
    request.success.add(request_put=etcd.PutRequest(key=key))
    request.success.add(request_range=etcd.RangeRequest(key=key, keys_only=True))
    return request.SerializeToString()


def counted(reply: bytes) -> int:
    """Return how often the key was written."""
    answer = decode(etcd.TxnResponse, reply)
    return answer.responses[1].response_range.kvs[0].version


def page(reply: bytes) -> Page:
    """Return the keys of a range."""
    answer = decode(etcd.RangeResponse, reply)
    entries = [Stored(kv.key, kv.value, kv.mod_revision, kv.lease) for kv in answer.kvs]
    return Page(entries, answer.header.revision, answer.more)


def news(reply: bytes) -> News:
    """Return what a watch told."""
    answer = decode(etcd.WatchResponse, reply)
    changes = [
        Told(event.kv.key, None, event.kv.mod_revision)
        if event.type == etcd.Event.DELETE
        else Told(event.kv.key, event.kv.value, event.kv.mod_revision, event.kv.lease)
        for event in answer.events
    ]
    ended = answer.cancel_reason or "no reason given" if answer.canceled else None
    return News(changes, answer.compact_revision, ended)


def decode(kind: type[_Kind], data: bytes) -> _Kind:
    """Return the message that etcd sent; Unavailable if it is none."""
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise Unavailable(f"etcd's answer is no {kind.__name__}: {error}") from error
    return message


_LIMITS = ("too many operations", "too large", "larger than max")


def error_of(refused: CallRefused) -> DanubeError:
    """Return what a refused call means to whoever asked for it."""
    text = refused.text
    if isinstance(refused, CallNotSent):
        return Unavailable(f"no etcd server was reached, nothing was done: {text}")
    if any(limit in text for limit in _LIMITS):
        return InvalidRequest(
            f"etcd takes no transaction as large as this ({text}): start it with "
            "--max-txn-ops=2048 and --max-request-bytes=33554432"
        )
    match refused.code:
        case StatusCode.NOT_FOUND:
            return NotFound(f"the lease does not exist, or has expired: ask for a new one ({text})")
        case StatusCode.INVALID_ARGUMENT | StatusCode.FAILED_PRECONDITION:
            return InvalidRequest(f"etcd refuses the request: {text}")
        case StatusCode.RESOURCE_EXHAUSTED:
            return Overloaded(f"etcd takes no more writes, nothing was done: {text}")
        case StatusCode.UNAUTHENTICATED | StatusCode.PERMISSION_DENIED:
            return AccessDenied(f"etcd does not let this broker in: {text}")
        case _:
            return Unavailable(f"etcd has not answered, a write may have happened: {text}")
