"""What can be asked of the metadata: the commands that are logged and replicated.

A command holds everything its effect depends on, the time included, so that every replica and
every replay does the same. Limits are checked here, before a command is logged, and never when it
is applied: replicas whose versions differ in their limits must still reach the same state.
"""

from collections.abc import Sequence
from typing import assert_never

import msgspec
from msgspec import Struct

from pydanube.errors import Corruption, InvalidRequest
from pydanube.metadata.store import Delete, Expect, Operation, Put

KIB = 1024
MIB = 1024 * KIB

KEY_BYTES_MAX = 8 * KIB
"""Enough for a topic and a subscription whose names are as long as names may be."""
VALUE_BYTES_MAX = MIB
TRANSACTION_BYTES_MAX = 8 * MIB
OPERATIONS_MAX = 1_024
"""Per transaction; the same holds for its conditions."""
NUMBER_MAX = 2**53
"""Of revisions and counters that a leap may reach."""
LEASE_TTL_MS_MAX = 365 * 24 * 3_600_000


class Transact(Struct, frozen=True, tag="transact"):
    """Apply all operations as one change if all conditions hold, nothing otherwise."""

    conditions: tuple[Expect, ...]
    operations: tuple[Operation, ...]


class NextId(Struct, frozen=True, tag="next_id"):
    """Count one further."""

    counter_key: str


class GrantLease(Struct, frozen=True, tag="grant_lease"):
    """Begin a lease that ends `ttl_ms` after `now_ms` unless it is renewed."""

    ttl_ms: int
    now_ms: int


class RenewLease(Struct, frozen=True, tag="renew_lease"):
    """Let the lease's time start anew at `now_ms`."""

    lease: int
    now_ms: int


class RevokeLease(Struct, frozen=True, tag="revoke_lease"):
    """End the lease and delete the keys bound to it."""

    lease: int


class ExpireLeases(Struct, frozen=True, tag="expire_leases"):
    """End every lease whose time is over at `now_ms`, and delete the keys bound to them."""

    now_ms: int


class Leap(Struct, frozen=True, tag="leap"):
    """Go on behind a revision and behind numbers of counters that may have been given before."""

    revision: int
    counters: tuple[tuple[str, int], ...]


Command = Transact | NextId | GrantLease | RenewLease | RevokeLease | ExpireLeases | Leap

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode_command(command: Command) -> bytes:
    """Return the bytes that are logged; the same command always gives the same bytes."""
    return _encoder.encode(command)


def decode_command(data: bytes) -> Command:
    """Return the command that was encoded; Corruption if these bytes are none."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise Corruption(f"not a metadata command: {error}") from error


def check_command(command: Command) -> None:
    """Refuse a command that must not be logged."""
    match command:
        case Transact(conditions, operations):
            _check_transaction(conditions, operations)
        case NextId(counter_key):
            check_key(counter_key)
        case GrantLease(ttl_ms):
            if not 1 <= ttl_ms <= LEASE_TTL_MS_MAX:
                raise InvalidRequest(
                    f"a lease lives 1 to {LEASE_TTL_MS_MAX} milliseconds, not {ttl_ms}"
                )
        case Leap(revision, counters):
            for key, _ in counters:
                check_key(key)
            if max(revision, *(number for _, number in counters), 0) > NUMBER_MAX:
                raise InvalidRequest(f"the metadata count to {NUMBER_MAX} at most")
        case RenewLease() | RevokeLease() | ExpireLeases():
            pass
        case _:
            assert_never(command)


def check_key(key: str) -> str:
    """Return `key` if it is a path such as /topics/default/orders; refuse it otherwise."""
    if not key.startswith("/") or key.endswith("/") or "//" in key:
        raise InvalidRequest(
            f"metadata key {key[:100]!r} must start with '/', not end with one, "
            "and have no empty part"
        )
    _check_length(key)
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it is "/" or a key with "/" behind it; refuse it otherwise."""
    if not prefix.startswith("/") or not prefix.endswith("/") or "//" in prefix:
        raise InvalidRequest(
            f"metadata prefix {prefix[:100]!r} must start and end with '/', and have no empty part"
        )
    _check_length(prefix)
    return prefix


def _check_length(path: str) -> None:
    try:
        size = len(path) if path.isascii() else len(path.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"metadata key {path[:100]!r} is not valid Unicode") from error
    if size > KEY_BYTES_MAX:
        raise InvalidRequest(f"a metadata key has {KEY_BYTES_MAX} bytes at most, this one {size}")


def _check_transaction(conditions: Sequence[Expect], operations: Sequence[Operation]) -> None:
    if max(len(conditions), len(operations)) > OPERATIONS_MAX:
        raise InvalidRequest(
            f"a transaction has {OPERATIONS_MAX} conditions and as many operations at most"
        )
    for condition in conditions:
        check_key(condition.key)
    size = 0
    for operation in operations:
        check_key(operation.key)
        size += len(operation.key) + _check_operation(operation)
    if size > TRANSACTION_BYTES_MAX:
        raise InvalidRequest(
            f"a transaction has {TRANSACTION_BYTES_MAX} bytes at most, this one {size}"
        )
    # Once per key, so that a watch tells one state of it for one revision.
    if len({operation.key for operation in operations}) < len(operations):
        raise InvalidRequest("a transaction names each key in one operation at most")


def _check_operation(operation: Operation) -> int:
    match operation:
        case Put(key, value):
            if len(value) > VALUE_BYTES_MAX:
                raise InvalidRequest(
                    f"the value of {key} has {len(value)} bytes, {VALUE_BYTES_MAX} are allowed"
                )
            return len(value)
        case Delete():
            return 0
        case _:
            assert_never(operation)
