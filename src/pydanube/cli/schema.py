"""`danube-cli schema`: the schema registry through a client port."""

import os
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, BinaryIO

import click

from pydanube.cli.options import Outside, outside, service_addr_option
from pydanube.cli.schemas import (
    MODES,
    file_option,
    read_definition,
    schema_option,
    schema_type_option,
)

if TYPE_CHECKING:
    from pydanube.admin.operations.schemas import SchemaOperations

_SERVICE_ADDR = "pydanube.service_addr"


@click.group("schema")
@service_addr_option
@click.pass_context
def command(ctx: click.Context, service_addr: str) -> None:
    """Register, inspect and delete schemas."""
    ctx.meta[_SERVICE_ADDR] = service_addr


def _output_option(verb: Callable[..., None]) -> Callable[..., None]:
    @click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "text", "json"]),
        default="table",
        show_default=True,
        help="How to print the result.",
    )
    @wraps(verb)
    def with_output(*arguments: object, **options: object) -> None:
        verb(*arguments, **options)

    return with_output


def _show(operation: "Callable[[SchemaOperations], Awaitable[object]]", output: str) -> None:
    from pydanube.cli.output import show
    from pydanube.runtime.process import run

    service_addr: str = click.get_current_context().meta[_SERVICE_ADDR]
    result = run(_carry_out(operation, service_addr, outside()))
    show(result, "json" if output == "json" else "text")


async def _carry_out(
    operation: "Callable[[SchemaOperations], Awaitable[object]]", url: str, given: Outside
) -> object:
    from pydanube.admin.operations.schemas import SchemaOperations
    from pydanube.client.client import connect

    async with connect(url, open_channel=given.open_channel) as client:
        return await operation(SchemaOperations(client.schemas.calls))


@command.command()
@click.argument("subject")
@schema_type_option
@file_option
@schema_option
@_output_option
def register(
    subject: str, schema_type: str, file: BinaryIO | None, schema: str | None, output: str
) -> None:
    """Add a version to SUBJECT, created when absent, or find the one that is equal."""
    definition = read_definition(file, schema, schema_type)
    created_by = os.environ.get("USER", "")
    _show(
        lambda schemas: schemas.register(subject, definition, schema_type, created_by=created_by),
        output,
    )


@command.command()
@click.argument("subject")
@click.option("-v", "--version", type=click.IntRange(min=1), help="Without it, the latest.")
@_output_option
def get(subject: str, version: int | None, output: str) -> None:
    """Show a version of SUBJECT."""
    _show(lambda schemas: schemas.get(subject=subject, version=version), output)


@command.command()
@click.argument("subject")
@_output_option
def versions(subject: str, output: str) -> None:
    """List the versions of SUBJECT."""
    _show(lambda schemas: schemas.versions(subject), output)


@command.command()
@click.argument("subject")
@schema_type_option
@file_option
@schema_option
@click.option("--mode", type=click.Choice(MODES, case_sensitive=False))
@_output_option
def check(
    subject: str,
    schema_type: str,
    file: BinaryIO | None,
    schema: str | None,
    mode: str | None,
    output: str,
) -> None:
    """Tell whether a definition could be the next version of SUBJECT; changes nothing."""
    definition = read_definition(file, schema, schema_type)
    _show(lambda schemas: schemas.check(subject, definition, schema_type, mode), output)


@command.command("list")
@_output_option
def list_subjects(output: str) -> None:
    """List all subjects."""
    _show(lambda schemas: schemas.subjects(), output)


@command.command()
@click.argument("subject")
@click.option("-v", "--version", type=click.IntRange(min=1), help="Without it, the whole subject.")
@click.option("--confirm", is_flag=True, help="Yes, delete it.")
@click.option("--force", is_flag=True, help="Also when a topic needs it.")
@_output_option
def delete(subject: str, version: int | None, confirm: bool, force: bool, output: str) -> None:
    """Delete a version of SUBJECT, or all of it; refused while a topic needs it."""
    if not confirm:
        raise click.UsageError("Deleting cannot be undone: add --confirm.")
    if version is None:
        _show(lambda schemas: schemas.delete_subject(subject, force=force), output)
    else:
        _show(lambda schemas: schemas.delete_version(subject, version, force=force), output)
