"""`danube produce`: publish messages to a topic."""

import asyncio
from collections.abc import Iterator, Mapping
from itertools import cycle, islice
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import click

from pydanube.cli.exit_codes import INTERRUPTED
from pydanube.cli.options import Outside, output_option, outside, service_addr_option
from pydanube.errors import DanubeError
from pydanube.model.schemas import SchemaReference, check_reference

if TYPE_CHECKING:
    from pydanube.cli.running import Meter, Rate
    from pydanube.client.producer import Producer

IN_FLIGHT_MAX = 100


class Publishing(NamedTuple):
    """What is to be published, where, and how fast."""

    service_addr: str
    topic: str
    producer_name: str
    reliable: bool
    partitions: int | None
    payload: bytes
    attributes: Mapping[str, str]
    routing_keys: tuple[str, ...]
    messages: int
    interval_seconds: float
    schema: SchemaReference | None = None
    definition: tuple[bytes, str] | None = None
    """To be registered first, with its type."""

    def keys(self) -> Iterator[str | None]:
        """Return the routing key of each message."""
        return islice(cycle(self.routing_keys or (None,)), self.messages)


def read_attributes(
    ctx: click.Context, parameter: click.Parameter, text: str | None
) -> dict[str, str]:
    """Read `key:value,key:value`."""
    pairs = [pair.partition(":") for pair in (text or "").split(",") if pair.strip()]
    if not all(colon and key.strip() for key, colon, _ in pairs):
        raise click.BadParameter("write key:value,key:value", ctx, parameter)
    return {key.strip(): value.strip() for key, _, value in pairs}


@click.command("produce")
@service_addr_option
@click.option("-n", "--producer-name", default="test_producer", show_default=True)
@click.option("-t", "--topic", default="/default/test_topic", show_default=True)
@click.option("-m", "--message", help="The text to publish.")
@click.option("-f", "--file", type=click.File("rb"), help="The file to publish; - is stdin.")
@click.option("-a", "--attributes", callback=read_attributes, metavar="KEY:VALUE,...")
@click.option("--routing-key", "routing_keys", multiple=True, help="Repeatable: used in turn.")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Create so many partitions.")
@click.option("-c", "--count", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "-i",
    "--interval",
    type=click.IntRange(min=0),
    default=500,
    show_default=True,
    help="Milliseconds between messages; 0: as fast as the broker acknowledges.",
)
@click.option("--reliable", is_flag=True, help="The topic stores messages until they are acked.")
@click.option("--schema-subject", help="Schema of the messages: the latest of this subject.")
@click.option("--schema-version", type=click.IntRange(min=1), help="Not the latest, but this one.")
@click.option("--schema-min-version", type=click.IntRange(min=1), help="At least this one.")
@click.option("--schema-file", type=click.File("rb"), help="Register this definition first.")
@click.option(
    "--schema-type",
    type=click.Choice(["json_schema", "avro", "protobuf"], case_sensitive=False),
    default="json_schema",
    show_default=True,
    help="What the file is.",
)
@output_option
def command(
    service_addr: str,
    producer_name: str,
    topic: str,
    message: str | None,
    file: BinaryIO | None,
    attributes: dict[str, str],
    routing_keys: tuple[str, ...],
    partitions: int | None,
    count: int,
    interval: int,
    reliable: bool,
    output: str,
    schema_subject: str | None,
    schema_version: int | None,
    schema_min_version: int | None,
    schema_file: BinaryIO | None,
    schema_type: str,
) -> None:
    """Publish messages to a topic.

    Prints how many the broker acknowledged: on a reliable topic these are on its disk.
    """
    others = (schema_version, schema_min_version, schema_file)
    if schema_subject is None and any(each is not None for each in others):
        raise click.UsageError("Name the --schema-subject too.")
    reference = None
    if schema_subject is not None:
        reference = check_reference(
            SchemaReference(
                subject=schema_subject, version=schema_version, min_version=schema_min_version
            )
        )
    if (message is None) == (file is None):
        raise click.UsageError("Give either --message or --file.")
    if not reliable:
        click.echo(
            f"note: without --reliable, messages reach only those who consume {topic} now",
            err=True,
        )
    publishing = Publishing(
        service_addr=service_addr,
        topic=topic,
        producer_name=producer_name,
        reliable=reliable,
        partitions=partitions,
        payload=file.read() if file is not None else (message or "").encode(),
        attributes=attributes,
        routing_keys=routing_keys,
        messages=count,
        interval_seconds=interval / 1_000,
        schema=reference,
        definition=(schema_file.read(), schema_type) if schema_file is not None else None,
    )
    from pydanube.cli.output import show
    from pydanube.runtime.process import run

    rate = run(publish(publishing, outside(), quiet=output == "json"))
    if output == "json":
        show(rate, output)
    else:
        click.echo(f"acknowledged: {rate}")
    if rate.messages < count:
        raise click.exceptions.Exit(INTERRUPTED)


async def publish(publishing: Publishing, given: Outside, *, quiet: bool) -> "Rate":
    """Publish until done, refused or interrupted."""
    from pydanube.cli.running import Meter, stopped_by_signals
    from pydanube.client.client import connect
    from pydanube.runtime.clock import SystemClock

    async with (
        stopped_by_signals() as stop,
        connect(publishing.service_addr, open_channel=given.open_channel) as client,
    ):
        if publishing.definition is not None:
            assert publishing.schema is not None
            await client.schemas.register(publishing.schema.subject, *publishing.definition)
        producer = await client.producer(
            publishing.topic,
            name=publishing.producer_name,
            reliable=publishing.reliable,
            partitions=publishing.partitions,
            schema=publishing.schema,
        )
        with Meter(SystemClock(), "published", publishing.messages, quiet=quiet) as meter:
            try:
                await _send_all(producer, publishing, meter, stop)
            except DanubeError:
                click.echo(
                    f"{meter.messages} of {publishing.messages} messages were acknowledged",
                    err=True,
                )
                raise
            return meter.rate()


async def _send_all(
    producer: "Producer", publishing: Publishing, meter: "Meter", stop: asyncio.Event
) -> None:
    keys = publishing.keys()

    async def send_in_turn() -> None:
        for key in keys:
            if stop.is_set():
                return
            await producer.send(
                publishing.payload, attributes=publishing.attributes, routing_key=key
            )
            meter.count(len(publishing.payload))
            if publishing.interval_seconds and meter.messages < publishing.messages:
                await _wait(stop, publishing.interval_seconds)

    # Without pauses, several messages are on their way at once: the broker syncs them together.
    senders = 1 if publishing.interval_seconds else min(IN_FLIGHT_MAX, publishing.messages)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(senders):
                group.create_task(send_in_turn())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None  # The others were cancelled, or failed alike.


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
