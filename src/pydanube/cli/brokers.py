"""`danube brokers`: verbs on brokers."""

import click

from pydanube.cli.options import AdminSession, admin_options


@click.group("brokers")
def command() -> None:
    """List, drain, activate and balance brokers."""


@command.command("list")
@admin_options
def list_brokers(session: AdminSession) -> None:
    """List the brokers with their addresses, roles and states."""
    session.show(lambda operations: operations.brokers.list_brokers())


@command.command("leader-broker")
@admin_options
def leader_broker(session: AdminSession) -> None:
    """Show which broker leads the cluster."""
    session.show(lambda operations: operations.brokers.leader())


@command.command()
@admin_options
def namespaces(session: AdminSession) -> None:
    """List all namespaces."""
    session.show(lambda operations: operations.namespaces.list_namespaces())


@command.command()
@click.option("--broker-id", required=True)
@click.option("--max-parallel", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--namespaces-include", multiple=True, help="Only topics of these; repeatable.")
@click.option("--namespaces-exclude", multiple=True, help="No topics of these; repeatable.")
@click.option("--dry-run", is_flag=True, help="Tell what would be moved, and move nothing.")
@click.option("--timeout-seconds", type=click.IntRange(min=1), default=60, show_default=True)
@admin_options
def unload(
    session: AdminSession,
    broker_id: str,
    max_parallel: int,
    namespaces_include: tuple[str, ...],
    namespaces_exclude: tuple[str, ...],
    dry_run: bool,
    timeout_seconds: int,
) -> None:
    """Move every topic away from a broker."""
    session.show(
        lambda operations: operations.brokers.unload(
            broker_id,
            max_parallel=max_parallel,
            namespaces_include=_split(namespaces_include),
            namespaces_exclude=_split(namespaces_exclude),
            dry_run=dry_run,
            timeout_seconds=timeout_seconds,
        )
    )


@command.command()
@click.argument("broker", required=False)
@click.option("--broker-id", help="The broker's id; may also be given as the argument.")
@click.option("--reason", default="admin_activate", show_default=True)
@admin_options
def activate(session: AdminSession, broker: str | None, broker_id: str | None, reason: str) -> None:
    """Let a drained BROKER take topics again."""
    chosen = broker_id or broker
    if chosen is None:
        raise click.UsageError("Missing option '--broker-id'.")
    session.show(lambda operations: operations.brokers.activate(chosen, reason))


@command.command()
@admin_options
def balance(session: AdminSession) -> None:
    """Show how evenly the brokers share the work."""
    session.show(lambda operations: operations.brokers.balance())


@command.command()
@click.option("--dry-run", is_flag=True, help="Tell what would be moved, and move nothing.")
@click.option("--max-moves", type=click.IntRange(min=0))
@admin_options
def rebalance(session: AdminSession, dry_run: bool, max_moves: int | None) -> None:
    """Move topics until the work is shared evenly."""
    session.show(
        lambda operations: operations.brokers.rebalance(dry_run=dry_run, max_moves=max_moves)
    )


def _split(values: tuple[str, ...]) -> list[str]:
    """Return the parts of options that may be repeated or hold a comma-separated list."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]
