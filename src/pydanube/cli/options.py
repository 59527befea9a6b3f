"""Options that several commands share, and how a command reaches the outside."""

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from pydanube.admin.operations import Operations
    from pydanube.wire.calls import ExchangeChannel

Result = TypeVar("Result")

ENDPOINT_FLAG = "--endpoint"
DEFAULT_ENDPOINT = "http://127.0.0.1:50051"
DEFAULT_SERVICE_ADDR = "http://127.0.0.1:6650"

_REMEMBERED_ENDPOINT = "pydanube.endpoint"


class Outside(NamedTuple):
    """What commands take from outside. Given to click as `obj`, by tests; else the real one."""

    open_channel: "Callable[[str], ExchangeChannel] | None" = None


def outside() -> Outside:
    """Return what the running command was given."""
    return click.get_current_context().find_object(Outside) or Outside()


def remember_endpoint(ctx: click.Context, _: click.Parameter, endpoint: str | None) -> None:
    """Keep a program's `--endpoint` for the command that follows it."""
    ctx.meta[_REMEMBERED_ENDPOINT] = endpoint


def _default_endpoint() -> str:
    remembered: str | None = click.get_current_context().meta.get(_REMEMBERED_ENDPOINT)
    return remembered or os.environ.get("DANUBE_ADMIN_ENDPOINT") or DEFAULT_ENDPOINT


output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print the result.",
)

service_addr_option = click.option(
    "-s",
    "--service-addr",
    default=DEFAULT_SERVICE_ADDR,
    envvar="DANUBE_SERVICE_ADDR",
    show_default=True,
    show_envvar=True,
    help="Any broker of the cluster.",
)


class AdminSession(NamedTuple):
    """Where an admin command goes, and how it prints what comes back."""

    endpoint: str
    output: str

    def show(
        self,
        operation: "Callable[[Operations], Awaitable[Result]]",
        as_text: "Callable[[Result], Sequence[object]] | None" = None,
    ) -> None:
        """Carry one operation out and print its result; `as_text` says how people read it."""
        from pydanube.cli.output import show  # Here, so that --help loads neither gRPC nor rich.
        from pydanube.runtime.process import run

        result = run(self._carry_out(operation, outside()))
        if as_text is None or self.output == "json":
            show(result, self.output)
            return
        for part in as_text(result):
            show(part, self.output)

    async def _carry_out(
        self, operation: "Callable[[Operations], Awaitable[Result]]", given: Outside
    ) -> "Result":
        from pydanube.admin.operations import Operations
        from pydanube.client.client import grpcio_channel

        open_channel = given.open_channel or grpcio_channel
        channel = open_channel(self.endpoint)
        async with Operations(channel, self.endpoint, open_channel) as operations:
            return await operation(operations)


def admin_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--endpoint` and `--output`, and call it with an AdminSession."""

    @click.option(
        ENDPOINT_FLAG,
        default=_default_endpoint,
        help=f"Admin port of a broker.  [env: DANUBE_ADMIN_ENDPOINT; default: {DEFAULT_ENDPOINT}]",
    )
    @output_option
    @wraps(command)
    def with_session(*, endpoint: str, output: str, **arguments: object) -> None:
        command(AdminSession(endpoint, output), **arguments)

    return with_session


def topic_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command TOPIC and `--namespace`, and call it with the topic's full name."""

    @click.argument("topic")
    @click.option("--namespace", help="Namespace of TOPIC, when TOPIC is not a full name.")
    @wraps(command)
    def with_topic(*arguments: object, topic: str, namespace: str | None, **rest: object) -> None:
        from pydanube.admin.operations.topics import full_topic_name

        command(*arguments, full_topic_name(topic, namespace), **rest)

    return with_topic
