"""Errors as gRPC status codes, and back: one table each way.

The most specific class of an error decides. A room's own error may name another code in a class
attribute `wire_status`, such as "INTERNAL"; it holds for its subclasses too.
"""

from collections.abc import Mapping
from types import MappingProxyType

from pydanube.errors import (
    AccessDenied,
    AlreadyExists,
    Conflict,
    Corruption,
    DanubeError,
    InvalidRequest,
    NotFound,
    NotSupported,
    Overloaded,
    Unavailable,
    WrongBroker,
)
from pydanube.wire.calls import CallRefused, StatusCode

STATUS_BY_KIND: Mapping[type[DanubeError], StatusCode] = MappingProxyType(
    {
        DanubeError: StatusCode.INTERNAL,
        InvalidRequest: StatusCode.INVALID_ARGUMENT,
        NotFound: StatusCode.NOT_FOUND,
        NotSupported: StatusCode.UNIMPLEMENTED,
        AccessDenied: StatusCode.PERMISSION_DENIED,
        Conflict: StatusCode.FAILED_PRECONDITION,
        AlreadyExists: StatusCode.ALREADY_EXISTS,
        WrongBroker: StatusCode.UNAVAILABLE,
        Overloaded: StatusCode.RESOURCE_EXHAUSTED,
        Unavailable: StatusCode.UNAVAILABLE,
        # No client repeats a call that ended so; damage does not heal by repeating.
        Corruption: StatusCode.OUT_OF_RANGE,
    }
)

KIND_BY_STATUS: Mapping[StatusCode, type[DanubeError]] = MappingProxyType(
    {
        StatusCode.CANCELLED: DanubeError,
        StatusCode.UNKNOWN: DanubeError,
        StatusCode.INVALID_ARGUMENT: InvalidRequest,
        StatusCode.DEADLINE_EXCEEDED: Unavailable,
        StatusCode.NOT_FOUND: NotFound,
        StatusCode.ALREADY_EXISTS: AlreadyExists,
        StatusCode.PERMISSION_DENIED: AccessDenied,
        StatusCode.RESOURCE_EXHAUSTED: Overloaded,
        StatusCode.FAILED_PRECONDITION: Conflict,
        StatusCode.ABORTED: Conflict,
        StatusCode.OUT_OF_RANGE: Corruption,
        StatusCode.UNIMPLEMENTED: NotSupported,
        StatusCode.INTERNAL: DanubeError,
        StatusCode.UNAVAILABLE: Unavailable,
        StatusCode.DATA_LOSS: Corruption,
        StatusCode.UNAUTHENTICATED: AccessDenied,
    }
)

# To these a stock client answers by creating its producer anew and sending again, without end.
_MAKES_SENDERS_LOOP = frozenset(
    {
        StatusCode.NOT_FOUND,
        StatusCode.PERMISSION_DENIED,
        StatusCode.FAILED_PRECONDITION,
        StatusCode.ABORTED,
    }
)


def status_of(kind: type[DanubeError]) -> StatusCode:
    """Return the code that calls end with when an error of this class is raised."""
    for ancestor in kind.__mro__:
        named = vars(ancestor).get("wire_status")
        if named is not None:
            return StatusCode[named]
        if ancestor in STATUS_BY_KIND:
            return STATUS_BY_KIND[ancestor]
    raise AssertionError(f"{kind} is no DanubeError")


def refusal(error: DanubeError) -> CallRefused:
    """Return how a call ends that failed with `error`."""
    return CallRefused(status_of(type(error)), str(error))


def send_status_of(kind: type[DanubeError]) -> StatusCode:
    """Return the code SendMessage ends with; what cannot heal must not be repeated for ever."""
    code = status_of(kind)
    return StatusCode.INVALID_ARGUMENT if code in _MAKES_SENDERS_LOOP else code


def send_refusal(error: DanubeError) -> CallRefused:
    """Return how SendMessage ends that failed with `error`."""
    return CallRefused(send_status_of(type(error)), str(error))


def error_of(refused: CallRefused) -> DanubeError:
    """Return the error a caller meets; its kind says whether repeating can help."""
    return KIND_BY_STATUS[refused.code](refused.text)
