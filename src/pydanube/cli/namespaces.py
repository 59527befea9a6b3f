"""`danube namespaces`: verbs on namespaces."""

import click

from pydanube.cli import retention
from pydanube.cli.options import AdminSession, admin_options
from pydanube.model.policies import REPLICAS_MAX


@click.group("namespaces")
def command() -> None:
    """Create, inspect and delete namespaces."""


@command.command()
@click.argument("namespace")
@admin_options
def topics(session: AdminSession, namespace: str) -> None:
    """List the topics of NAMESPACE."""
    session.show(lambda operations: operations.namespaces.topics(namespace))


@command.command()
@click.argument("namespace")
@admin_options
def policies(session: AdminSession, namespace: str) -> None:
    """Show the limits of NAMESPACE's topics; 0 is unlimited."""
    session.show(lambda operations: operations.namespaces.policies(namespace))


@command.command()
@click.argument("namespace")
@admin_options
def create(session: AdminSession, namespace: str) -> None:
    """Create NAMESPACE."""
    session.show(lambda operations: operations.namespaces.create(namespace))


@command.command("set-message-ttl")
@click.argument("namespace")
@click.option(
    "--ttl-ms",
    type=click.IntRange(min=0),
    required=True,
    help="Milliseconds after its publish time; 0 lets messages live for ever.",
)
@admin_options
def set_message_ttl(session: AdminSession, namespace: str, ttl_ms: int) -> None:
    """Say how long messages of NAMESPACE's topics may be delivered."""
    session.show(lambda operations: operations.namespaces.set_message_ttl(namespace, ttl_ms))


@command.command("set-replicas")
@click.argument("namespace")
@click.option(
    "--replicas",
    type=click.IntRange(0, REPLICAS_MAX),
    required=True,
    help="Journals, the owner's included; 0 is as the brokers are configured.",
)
@admin_options
def set_replicas(session: AdminSession, namespace: str, replicas: int) -> None:
    """Say in how many brokers' journals the messages of NAMESPACE's topics are."""
    session.show(lambda operations: operations.namespaces.set_replicas(namespace, replicas))


@command.command()
@click.argument("namespace")
@admin_options
def delete(session: AdminSession, namespace: str) -> None:
    """Delete NAMESPACE, which must be empty."""
    session.show(lambda operations: operations.namespaces.delete(namespace))


command.add_command(retention.namespace_retention)
command.add_command(retention.set_namespace_retention)
