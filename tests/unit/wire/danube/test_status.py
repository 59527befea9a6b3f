import importlib
import pkgutil
from typing import ClassVar

import pytest

import pydanube
from pydanube import errors
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
from pydanube.wire.danube.status import (
    KIND_BY_STATUS,
    STATUS_BY_KIND,
    error_of,
    refusal,
    send_refusal,
    send_status_of,
    status_of,
)

# What every stock client repeats.
REPEATED = {
    StatusCode.UNAVAILABLE,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.RESOURCE_EXHAUSTED,
}


def subclasses(kind):
    for subclass in kind.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def every_error():
    """Every error of every room: rooms keep theirs in modules called `errors`."""
    for module in pkgutil.walk_packages(pydanube.__path__, "pydanube."):
        if module.name.endswith(".errors"):
            importlib.import_module(module.name)
    return {DanubeError, *(e for e in subclasses(DanubeError) if e.__module__ != __name__)}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (InvalidRequest, "INVALID_ARGUMENT"),
        (NotFound, "NOT_FOUND"),
        (NotSupported, "UNIMPLEMENTED"),
        (AccessDenied, "PERMISSION_DENIED"),
        (Conflict, "FAILED_PRECONDITION"),
        (AlreadyExists, "ALREADY_EXISTS"),
        (WrongBroker, "UNAVAILABLE"),
        (Overloaded, "RESOURCE_EXHAUSTED"),
        (Unavailable, "UNAVAILABLE"),
        (Corruption, "OUT_OF_RANGE"),
        (DanubeError, "INTERNAL"),
    ],
)
def test_each_kind_has_its_status(kind, code):
    assert status_of(kind).name == code


def test_every_kind_is_in_the_table():
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    assert kinds == set(STATUS_BY_KIND)


def test_every_error_of_every_room_has_a_status_and_only_retryable_ones_are_repeated():
    for error in every_error():
        code = status_of(error)
        assert code is not StatusCode.OK
        assert (code in REPEATED) == error.retryable, error


def test_subclasses_inherit_and_the_most_specific_class_wins():
    class NoSuchTopic(NotFound):
        pass

    class Odd(NoSuchTopic):
        wire_status: ClassVar[str] = "ABORTED"

    class Odder(Odd):
        pass

    assert status_of(NoSuchTopic) is StatusCode.NOT_FOUND
    assert status_of(Odd) is StatusCode.ABORTED
    assert status_of(Odder) is StatusCode.ABORTED


def test_every_status_but_ok_has_a_kind_and_repeated_ones_are_retryable():
    assert set(KIND_BY_STATUS) == set(StatusCode) - {StatusCode.OK}
    assert {code for code, kind in KIND_BY_STATUS.items() if kind.retryable} == REPEATED


def test_a_refusal_keeps_its_text_and_comes_back_as_its_kind():
    error = error_of(refusal(AlreadyExists("topic /default/t is there")))
    assert type(error) is AlreadyExists
    assert str(error) == "topic /default/t is there"


def test_a_wrong_broker_comes_back_as_something_to_repeat():
    error = error_of(refusal(WrongBroker("/default/t", "http://b:6650")))
    assert error.retryable
    assert "/default/t" in str(error)


def test_every_status_can_be_made_an_error():
    for code in set(StatusCode) - {StatusCode.OK}:
        assert str(error_of(CallRefused(code, "why"))) == "why"


def test_a_send_never_ends_with_a_status_that_makes_clients_loop_over_a_lasting_failure():
    looping = {"NOT_FOUND", "PERMISSION_DENIED", "FAILED_PRECONDITION", "ABORTED"}
    for kind in every_error():
        code = send_status_of(kind)
        assert code.name not in looping
        assert (code in REPEATED) == kind.retryable
    refused = send_refusal(AccessDenied("no"))
    assert (refused.code, refused.text) == (StatusCode.INVALID_ARGUMENT, "no")
