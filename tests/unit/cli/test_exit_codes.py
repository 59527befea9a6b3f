import click
import pytest
from click.testing import CliRunner

from pydanube import errors
from pydanube.cli.exit_codes import FAILURES, INTERRUPTED, failure_of
from pydanube.cli.lazy import GuardedCommand
from pydanube.cli.main import danube

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.DanubeError)
]


def run_failing_with(error: BaseException) -> tuple[int, str]:
    @click.command(cls=GuardedCommand)
    def fail() -> None:
        raise error

    result = CliRunner().invoke(fail)
    return result.exit_code, result.stderr


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_error_has_its_own_entry(kind: type[errors.DanubeError]) -> None:
    assert kind in FAILURES
    assert FAILURES[kind].exit_code > 0
    assert FAILURES[kind].next_step.endswith(".")


def test_a_rooms_own_error_is_treated_as_its_kind() -> None:
    class NoSuchThing(errors.NotFound):
        pass

    assert failure_of(NoSuchThing("x")) is FAILURES[errors.NotFound]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.DanubeError("x"), 1),
        (errors.InvalidRequest("x"), 2),
        (errors.NotSupported("x"), 2),
        (errors.NotFound("x"), 3),
        (errors.AccessDenied("x"), 4),
        (errors.Conflict("x"), 5),
        (errors.AlreadyExists("x"), 6),
        (errors.Overloaded("x"), 7),
        (errors.Unavailable("x"), 8),
        (errors.WrongBroker("/default/x", None), 8),
        (errors.Corruption("x"), 9),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exit_codes_are_part_of_the_contract(error: errors.DanubeError, code: int) -> None:
    assert run_failing_with(error)[0] == code


def test_an_error_names_its_code_its_cause_and_the_next_step() -> None:
    _, said = run_failing_with(errors.Unavailable("nobody at port 6650"))
    assert said.startswith("error[unavailable]: nobody at port 6650\nnext: Start a broker with")


def test_errors_of_the_system_are_told_without_a_traceback() -> None:
    code, said = run_failing_with(PermissionError(13, "Permission denied", "/data"))
    assert (code, "Permission denied" in said) == (1, True)


def test_an_interrupt_ends_with_the_code_shells_expect() -> None:
    assert run_failing_with(KeyboardInterrupt())[0] == INTERRUPTED


def test_a_bug_keeps_its_traceback() -> None:
    @click.command(cls=GuardedCommand)
    def fail() -> None:
        raise ZeroDivisionError

    assert isinstance(CliRunner().invoke(fail).exception, ZeroDivisionError)


def test_help_documents_every_exit_code() -> None:
    output = CliRunner().invoke(danube, ["--help"]).output
    documented = {int(word) for word in output.split("Exit codes:")[1].split() if word.isdigit()}
    assert documented == {0} | {failure.exit_code for failure in FAILURES.values()}
