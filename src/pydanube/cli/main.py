"""The five programs: `danube`, and the names from the Danube documentation.

Nothing heavy is imported here; `danube --help` must answer at once.
"""

import click

from pydanube import __version__
from pydanube.cli.lazy import Found, LazyGroup
from pydanube.cli.options import ENDPOINT_FLAG, remember_endpoint

_CLIENT = {
    "produce": Found("pydanube.cli.produce", "Publish messages to a topic."),
    "consume": Found("pydanube.cli.consume", "Receive messages of a topic and print them."),
}

_ADMIN = {
    "topics": Found("pydanube.cli.topics", "Create, list, describe and delete topics."),
    "schemas": Found("pydanube.cli.schemas", "Register, inspect, compare and delete schemas."),
    "namespaces": Found("pydanube.cli.namespaces", "Create, inspect and delete namespaces."),
    "brokers": Found("pydanube.cli.brokers", "List, drain, activate and balance brokers."),
    "cluster": Found(
        "pydanube.cli.cluster", "Run a local cluster; see, add, promote and remove nodes."
    ),
}

_EXIT_CODES = """\b
Exit codes:
  0  done                         5  conflict with the present state
  1  failed                       6  exists already
  2  wrong command, or not there  7  overloaded, try again later
  3  not found                    8  no broker answers
  4  access denied                9  stored bytes are damaged"""


def _version_flag() -> click.Option:
    def print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            click.echo(f"{ctx.info_name} {__version__}")
            ctx.exit()

    return click.Option(
        ["--version"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=print_version,
        help="Print the version and leave.",
    )


danube = LazyGroup(
    "danube",
    {
        "demo": Found("pydanube.cli.demo", "See a broker with live traffic, in seconds."),
        "broker": Found("pydanube.cli.broker", "Run a broker."),
        **_CLIENT,
        "run": Found(
            "pydanube.cli.run", "Run the handlers of a pydanube.App until SIGTERM or Ctrl-C."
        ),
        **_ADMIN,
        "subscriptions": Found(
            "pydanube.cli.subscriptions", "List, move, configure and delete subscriptions."
        ),
        "dlq": Found("pydanube.cli.dlq", "List, read, requeue and purge dead letters."),
        "table": Found(
            "pydanube.cli.table", "Keep topics as Delta or Iceberg tables, each message once."
        ),
        "bench": Found(
            "pydanube.cli.bench", "Measure a broker: rates, latencies, CPU per message."
        ),
        "pipeline": Found(
            "pydanube.cli.pipeline", "Plan, run, watch and stop data pipelines on Spark."
        ),
        "spark": Found(
            "pydanube.cli.spark",
            "Start Spark with the right settings; replay, verify and compact history.",
        ),
        "doctor": Found("pydanube.cli.doctor", "Check packages, Java, environment and broker."),
        "journal": Found("pydanube.cli.journal", "Check a stopped broker's journal."),
        "backup": Found("pydanube.cli.backup", "Copy, check and restore the metadata of brokers."),
        "recover": Found(
            "pydanube.cli.recover", "Bring back what journal and segments have beyond the metadata."
        ),
    },
    help="PyDanube: a messaging broker whose acknowledgement means fsynced, and its tools.",
    epilog=_EXIT_CODES,
    params=[_version_flag()],
)

danube_cli = LazyGroup(
    "danube-cli",
    {
        **_CLIENT,
        "schema": Found("pydanube.cli.schema", "Register, inspect and delete schemas."),
    },
    help="Publish and receive messages.",
    epilog=_EXIT_CODES,
    params=[_version_flag()],
)

danube_admin = LazyGroup(
    "danube-admin",
    _ADMIN,
    help="Administer a Danube cluster through one broker's admin port.",
    epilog=_EXIT_CODES,
    params=[
        _version_flag(),
        click.Option(
            [ENDPOINT_FLAG],
            expose_value=False,
            callback=remember_endpoint,
            help="Admin port of a broker, for every command; see there.",
        ),
    ],
)


def danube_broker() -> None:
    """Run `danube broker` under the name the Danube documentation gives it."""
    from pydanube.cli.broker import command

    command(prog_name="danube-broker")


def danube_iceberg() -> None:
    """Keep topics as Iceberg tables, under the name the Danube documentation gives it."""
    from pydanube.cli.danube_iceberg import command

    command(prog_name="danube-iceberg")
