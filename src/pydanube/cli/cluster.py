"""`danube cluster`: a local cluster in one command, and verbs on the nodes of any."""

import tempfile
from contextlib import ExitStack

import click

from pydanube.cli.options import AdminSession, admin_options

BROKERS_MAX = 9


@click.group("cluster")
def command() -> None:
    """Run a local cluster; see, add, promote and remove nodes."""


@command.command()
@admin_options
def status(session: AdminSession) -> None:
    """Show leader, voters and learners of the metadata."""
    session.show(lambda operations: operations.cluster.status())


@command.command("add-node")
@click.option("--node-addr", required=True, help="Admin URL of the new broker.")
@admin_options
def add_node(session: AdminSession, node_addr: str) -> None:
    """Let a broker that was started with --join learn."""
    session.show(lambda operations: operations.cluster.add_node(node_addr))


@command.command("promote-node")
@click.option("--node-id", type=int, required=True)
@admin_options
def promote_node(session: AdminSession, node_id: int) -> None:
    """Let a learner vote."""
    session.show(lambda operations: operations.cluster.promote_node(node_id))


@command.command("remove-node")
@click.option("--node-id", type=int, required=True)
@admin_options
def remove_node(session: AdminSession, node_id: int) -> None:
    """Take a node out of the cluster."""
    session.show(lambda operations: operations.cluster.remove_node(node_id))


@command.command()
@click.option(
    "--brokers", type=click.IntRange(1, BROKERS_MAX), default=3, show_default=True, help="How many."
)
@click.option("--data-dir", help="Keep everything there.  [default: a directory of the moment]")
@click.option(
    "--first-port",
    type=click.IntRange(1024, 65000),
    default=6650,
    show_default=True,
    help="Client port of the first broker; the others follow. Admin ports begin at 50051, Raft "
    "ports at 7650, metrics at 9040.",
)
@click.option("--replicas", type=click.IntRange(1, BROKERS_MAX), help="Journals per message.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="End after so long.")
def up(
    brokers: int,
    data_dir: str | None,
    first_port: int,
    replicas: int | None,
    seconds: float | None,
) -> None:
    """Run a cluster on this machine until Ctrl-C.

    Each broker is a process of its own below --data-dir, and one that ends is started again: kill
    one to see another take over. Segments lie in a directory that all of them share.
    """
    from pydanube.cli.local_cluster import LocalCluster, LocalPlan  # Here: --help loads nothing.
    from pydanube.runtime.process import run

    with ExitStack() as stack:
        directory = data_dir or stack.enter_context(tempfile.TemporaryDirectory(prefix="danube-"))
        plan = LocalPlan(
            directory=directory,
            brokers=brokers,
            first_port=first_port,
            replicas=replicas,
            is_of_the_moment=data_dir is None,
        )
        run(LocalCluster(plan, click.echo).run(seconds))
