"""What `danube` says and returns when it fails: one table, by kind of error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import click

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

INTERRUPTED = 130
"""What shells expect of a program that SIGINT ended."""

OF_EXTRA_SPARK = frozenset(
    ("deltalake", "grpc_status", "pandas", "pyiceberg", "pyspark", "sqlalchemy", "zstandard")
)
"""Packages that commands import and only `pydanube[spark]` installs."""


class Failure(NamedTuple):
    """How one kind of error leaves the process, and what its reader can do about it."""

    exit_code: int
    next_step: str


FAILURES: dict[type[DanubeError], Failure] = {
    DanubeError: Failure(1, "Run the command again; if it fails again, read the broker's log."),
    InvalidRequest: Failure(2, "Mend the command; --help shows what it takes."),
    NotSupported: Failure(2, "`danube --help` lists what this version offers."),
    NotFound: Failure(
        3,
        "Check the name; `danube brokers namespaces` and `danube topics list --namespace NAME` "
        "show what exists.",
    ),
    AccessDenied: Failure(4, "Ask an operator for the permission, or for a higher limit."),
    Conflict: Failure(
        5, "Look at what is there now (`danube topics describe`), then decide again."
    ),
    AlreadyExists: Failure(6, "Use what exists, or choose another name."),
    Overloaded: Failure(7, "Slow down and run the command again."),
    Unavailable: Failure(
        8,
        "Start a broker with `danube broker --data-dir DIR`, or name a running one with "
        "--service-addr (produce, consume) or --endpoint (everything else).",
    ),
    WrongBroker: Failure(8, "Run the command again: the topic is being moved."),
    Corruption: Failure(
        9,
        "Nothing was changed. `danube journal verify --data-dir DIR` names the damage; "
        "`danube journal quarantine` sets it aside.",
    ),
}


def failure_of(error: DanubeError) -> Failure:
    """Return the entry of the nearest kind; every DanubeError has one."""
    failure = next(FAILURES[kind] for kind in type(error).__mro__ if kind in FAILURES)
    return failure if error.next_step is None else failure._replace(next_step=error.next_step)


@contextmanager
def errors_become_exit_codes() -> Iterator[None]:
    """Turn what a command raises into a sentence on stderr and an exit code.

    Bugs pass through with their traceback: they are not the user's to mend.
    """
    try:
        yield
    except DanubeError as error:
        failure = failure_of(error)
        click.echo(f"error[{error.code}]: {error}", err=True)
        click.echo(f"next: {failure.next_step}", err=True)
        raise click.exceptions.Exit(failure.exit_code) from error
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OF_EXTRA_SPARK:
            raise
        click.echo(f"error[not_supported]: the package {package} is not installed", err=True)
        click.echo("next: pip install 'pydanube[spark]'", err=True)
        raise click.exceptions.Exit(FAILURES[NotSupported].exit_code) from error
    except BrokenPipeError:
        raise  # Whoever read our output has had enough; click ends quietly.
    except OSError as error:
        click.echo(f"error[system]: {error}", err=True)
        raise click.exceptions.Exit(FAILURES[DanubeError].exit_code) from error
    except KeyboardInterrupt as error:
        raise click.exceptions.Exit(INTERRUPTED) from error
