"""`danube schemas`: verbs on the schema registry, through an admin port."""

import os
from typing import BinaryIO

import click

from pydanube.cli.options import AdminSession, admin_options

SCHEMA_TYPES = ("json_schema", "avro", "protobuf", "string", "bytes", "number")
MODES = (
    "none",
    "backward",
    "forward",
    "full",
    "backward_transitive",
    "forward_transitive",
    "full_transitive",
)
WITHOUT_DEFINITION = ("string", "bytes", "number")

schema_type_option = click.option(
    "-t",
    "--schema-type",
    type=click.Choice(SCHEMA_TYPES, case_sensitive=False),
    required=True,
    help="What the definition is.",
)
file_option = click.option(
    "-f", "--file", type=click.File("rb"), help="The file with the definition; - is stdin."
)
schema_option = click.option("--schema", help="The definition itself.")


def read_definition(file: BinaryIO | None, schema: str | None, schema_type: str) -> bytes:
    """Return the definition that was given in one way or the other."""
    if file is not None and schema is not None:
        raise click.UsageError("Give either --file or --schema.")
    if file is not None:
        return file.read()
    if schema is None and schema_type.lower() not in WITHOUT_DEFINITION:
        raise click.UsageError(f"A schema of type {schema_type} needs --file or --schema.")
    return (schema or "").encode()


@click.group("schemas")
def command() -> None:
    """Register, inspect, compare and delete schemas."""


@command.command()
@click.argument("subject")
@schema_type_option
@file_option
@schema_option
@click.option("--description", default="", help="What changed, for people.")
@click.option("--tags", multiple=True, help="Repeatable.")
@admin_options
def register(
    session: AdminSession,
    subject: str,
    schema_type: str,
    file: BinaryIO | None,
    schema: str | None,
    description: str,
    tags: tuple[str, ...],
) -> None:
    """Add a version to SUBJECT, created when absent, or find the one that is equal."""
    definition = read_definition(file, schema, schema_type)
    created_by = os.environ.get("USER", "")
    session.show(
        lambda operations: operations.schemas.register(
            subject,
            definition,
            schema_type,
            description=description,
            created_by=created_by,
            tags=tags,
        )
    )


@command.command()
@click.option("--id", "schema_id", type=click.IntRange(min=1), help="Of the subject.")
@click.option("--subject", help="In place of --id.")
@click.option("--version", type=click.IntRange(min=1), help="Without it, the latest.")
@admin_options
def get(
    session: AdminSession, schema_id: int | None, subject: str | None, version: int | None
) -> None:
    """Show a schema, by --id or by --subject."""
    session.show(
        lambda operations: operations.schemas.get(
            subject=subject, schema_id=schema_id, version=version
        )
    )


@command.command()
@click.argument("subject")
@admin_options
def versions(session: AdminSession, subject: str) -> None:
    """List the versions of SUBJECT."""
    session.show(lambda operations: operations.schemas.versions(subject))


@command.command()
@click.argument("subject")
@click.option("--from", "from_version", type=click.IntRange(min=1), help="The older version.")
@click.option("--to", "to_version", type=click.IntRange(min=1), help="The newer version.")
@admin_options
def diff(
    session: AdminSession, subject: str, from_version: int | None, to_version: int | None
) -> None:
    """Tell what changed between two versions of SUBJECT, and who can still read what.

    Without --from and --to: from the last but one to the last.
    """
    session.show(lambda operations: operations.schemas.diff(subject, from_version, to_version))


@command.command()
@click.argument("subject")
@schema_type_option
@file_option
@schema_option
@click.option(
    "--mode",
    type=click.Choice(MODES, case_sensitive=False),
    help="In place of the subject's own.",
)
@admin_options
def check(
    session: AdminSession,
    subject: str,
    schema_type: str,
    file: BinaryIO | None,
    schema: str | None,
    mode: str | None,
) -> None:
    """Tell whether a definition could be the next version of SUBJECT; changes nothing."""
    definition = read_definition(file, schema, schema_type)
    session.show(
        lambda operations: operations.schemas.check(subject, definition, schema_type, mode)
    )


@command.command("get-compatibility")
@click.argument("subject")
@admin_options
def get_compatibility(session: AdminSession, subject: str) -> None:
    """Show what later versions of SUBJECT are held to."""
    session.show(lambda operations: operations.schemas.compatibility(subject))


@command.command("set-compatibility")
@click.argument("subject")
@click.option("--mode", type=click.Choice(MODES, case_sensitive=False), required=True)
@admin_options
def set_compatibility(session: AdminSession, subject: str, mode: str) -> None:
    """Set what later versions of SUBJECT are held to."""
    session.show(lambda operations: operations.schemas.set_compatibility(subject, mode.lower()))


@command.command()
@click.argument("subject")
@click.option("--version", type=click.IntRange(min=1), help="Without it, the whole subject.")
@click.option("--confirm", is_flag=True, help="Yes, delete it.")
@click.option("--force", is_flag=True, help="Also when a topic needs it.")
@admin_options
def delete(
    session: AdminSession, subject: str, version: int | None, confirm: bool, force: bool
) -> None:
    """Delete a version of SUBJECT, or all of it; refused while a topic needs it."""
    if not confirm:
        raise click.UsageError("Deleting cannot be undone: add --confirm.")
    if version is None:
        session.show(lambda operations: operations.schemas.delete_subject(subject, force=force))
    else:
        session.show(
            lambda operations: operations.schemas.delete_version(subject, version, force=force)
        )


@command.command("list-subjects")
@admin_options
def list_subjects(session: AdminSession) -> None:
    """List all subjects."""
    session.show(lambda operations: operations.schemas.subjects())
