"""`danube dlq`: dead letters, from what they say to what becomes of them."""

import base64
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from pydanube.cli.options import output_option, outside, service_addr_option
from pydanube.errors import DanubeError

if TYPE_CHECKING:
    from pydanube.client.dead_letters import DeadLetter, DeadLetters

PAYLOAD_SHOWN_BYTES_MAX = 1_024
READ_DEFAULT = 10


@click.group("dlq")
def command() -> None:
    """List, read, requeue and purge dead letters."""


count_option = click.option(
    "--count", type=click.IntRange(min=1), help="The oldest so many.  [default: all there are now]"
)


@command.command("list")
@click.option("--namespace", help="Dead-letter topics of this namespace.")
@service_addr_option
@output_option
def list_topics(namespace: str | None, service_addr: str, output: str) -> None:
    """List the topics with dead letters: how many they hold, and whose they are.

    These are the topics that failure policies name, and those whose names end in -dlq.
    """
    _show(service_addr, output, lambda letters: letters.topics(namespace))


@command.command()
@click.argument("topic")
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=READ_DEFAULT,
    show_default=True,
    help="At most so many.",
)
@click.option(
    "--offset", type=click.IntRange(min=0), help="From this one on.  [default: the oldest left]"
)
@service_addr_option
@output_option
def read(topic: str, count: int, offset: int | None, service_addr: str, output: str) -> None:
    """Show dead letters of TOPIC, why they failed and where, and take none out.

    With --output json, each is one line.
    """

    async def show(letters: "DeadLetters") -> None:
        async for letter in letters.read(topic, count=count, start=offset):
            click.echo(_as_json(letter) if output == "json" else _as_text(letter))

    _run(service_addr, show)


@command.command()
@click.argument("topic")
@count_option
@click.option("--to", help="Another topic than those they come from.")
@service_addr_option
@output_option
def requeue(topic: str, count: int | None, to: str | None, service_addr: str, output: str) -> None:
    """Publish dead letters of TOPIC to the topics they come from, and take them out.

    Each is taken out once it is on disk there. Every subscription of that topic gets it, at the
    end of the topic; those that handled it before get it again.
    """
    _show(service_addr, output, lambda letters: letters.requeue(topic, count=count, to=to))


@command.command()
@click.argument("topic")
@count_option
@click.option("--confirm", is_flag=True, help="Yes, give them up.")
@service_addr_option
@output_option
def purge(topic: str, count: int | None, confirm: bool, service_addr: str, output: str) -> None:
    """Give dead letters of TOPIC up: they are neither read nor requeued any more."""
    if not confirm:
        raise click.UsageError(
            "Dead letters that were given up are not requeued any more: add --confirm."
        )
    _show(service_addr, output, lambda letters: letters.purge(topic, count=count))


def _show(
    service_addr: str, output: str, work: "Callable[[DeadLetters], Awaitable[object]]"
) -> None:
    from pydanube.cli.output import show

    show(_run(service_addr, work), output)


def _run(service_addr: str, work: "Callable[[DeadLetters], Awaitable[object]]") -> object:
    from pydanube.client.client import connect
    from pydanube.client.dead_letters import DeadLetters
    from pydanube.runtime.process import run

    given = outside()

    async def with_letters() -> object:
        async with connect(service_addr, open_channel=given.open_channel) as client:
            return await work(DeadLetters(client))

    try:
        return run(with_letters())
    except DanubeError as error:
        for note in getattr(error, "__notes__", ()):
            click.echo(note, err=True)
        raise


def _as_text(letter: "DeadLetter") -> str:
    from pydanube.cli.output import visible

    if len(letter.payload) > PAYLOAD_SHOWN_BYTES_MAX:
        payload = f"({len(letter.payload)} bytes)"
    else:
        payload = letter.payload.decode(errors="backslashreplace")
    origin = f"{letter.original_topic}@{letter.original_offset}"
    lines = [
        f"{letter.topic}@{letter.offset}: {payload}",
        f"  from    {origin if letter.original_topic else 'unknown'}",
        f"  for     {letter.subscription or 'unknown'}",
        f"  failed  {letter.attempts or '?'} times: {letter.reason or 'no reason was given'}",
    ]
    if letter.routing_key is not None:
        lines.append(f"  key     {letter.routing_key}")
    return "\n".join(visible(line.replace("\n", " ")) for line in lines)


def _as_json(letter: "DeadLetter") -> str:
    import msgspec
    from msgspec import structs

    fields = structs.asdict(letter)
    del fields["payload"]
    try:
        fields["payload"] = letter.payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = base64.b64encode(letter.payload).decode()
    return msgspec.json.encode(fields).decode()
