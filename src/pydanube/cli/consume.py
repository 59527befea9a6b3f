"""`danube consume`: receive messages of a topic, print and settle them."""

import base64
from typing import TYPE_CHECKING, NamedTuple

import click

from pydanube.cli.options import Outside, output_option, outside, service_addr_option
from pydanube.client.positions import read_position
from pydanube.errors import DanubeError, InvalidRequest
from pydanube.model.schemas import VERSION_ASSUMED

if TYPE_CHECKING:
    from pydanube.cli.running import Meter, Rate
    from pydanube.client.consumer import Consumer
    from pydanube.client.message import ReceivedMessage
    from pydanube.client.schemas import Schemas
    from pydanube.model.policies import SubscriptionType

PAYLOAD_SHOWN_BYTES_MAX = 1_024

SUBSCRIPTION_TYPES: "dict[str, SubscriptionType]" = {
    "exclusive": "Exclusive",
    "shared": "Shared",
    "fail-over": "Failover",
    "key-shared": "KeyShared",
}


class Consuming(NamedTuple):
    """What is to be received, and when to end."""

    service_addr: str
    topic: str
    subscription: str
    consumer_name: str | None
    subscription_type: "SubscriptionType"
    key_filters: tuple[str, ...]
    start_position: str | None
    nack: bool
    messages_max: int | None
    seconds: float | None
    output: str


def check_start_position(
    ctx: click.Context, parameter: click.Parameter, text: str | None
) -> str | None:
    """Accept earliest, latest, offset:N and time:T."""
    if text is None:
        return None
    try:
        return read_position(text)
    except InvalidRequest as error:
        raise click.BadParameter(str(error), ctx, parameter) from None


@click.command("consume")
@service_addr_option
@click.option("-t", "--topic", default="/default/test_topic", show_default=True)
@click.option(
    "-n",
    "--consumer",
    help="Its name; whoever has it already loses it.  [default: a name of its own]",
)
@click.option("-m", "--subscription", required=True, help="Created when absent.")
@click.option(
    "--sub-type",
    type=click.Choice(list(SUBSCRIPTION_TYPES)),
    default="shared",
    show_default=True,
    help="Fixed by the first consumer of a subscription.",
)
@click.option(
    "--key-filter",
    "key_filters",
    multiple=True,
    help="Routing keys to receive, such as eu-*; for key-shared, repeatable.",
)
@click.option(
    "--start-position",
    callback=check_start_position,
    metavar="earliest|latest|offset:N|time:T",
    help="Where a new subscription starts.  [default: latest]",
)
@click.option("--nack", is_flag=True, help="Give every message back instead of acking it.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="End after so long.")
@output_option
def command(
    service_addr: str,
    topic: str,
    consumer: str | None,
    subscription: str,
    sub_type: str,
    key_filters: tuple[str, ...],
    start_position: str | None,
    nack: bool,
    count: int | None,
    seconds: float | None,
    output: str,
) -> None:
    """Receive messages of a topic and print them.

    Every message is acked once it is printed. Ends on Ctrl-C, or after --count or --seconds; with
    --output json, each message is one line.
    """
    consuming = Consuming(
        service_addr=service_addr,
        topic=topic,
        subscription=subscription,
        consumer_name=consumer,
        subscription_type=SUBSCRIPTION_TYPES[sub_type],
        key_filters=key_filters,
        start_position=start_position,
        nack=nack,
        messages_max=count,
        seconds=seconds,
        output=output,
    )
    from pydanube.runtime.process import run

    rate = run(consume(consuming, outside()))
    click.echo(f"received {rate}", err=True)


async def consume(consuming: Consuming, given: Outside) -> "Rate":
    """Receive until the count, the time or a signal ends it."""
    from pydanube.cli.running import Meter, report_failure, stopped_by_signals
    from pydanube.client.client import connect
    from pydanube.runtime.clock import SystemClock
    from pydanube.runtime.tasks import TaskScope

    clock = SystemClock()
    async with (
        stopped_by_signals() as stop,
        connect(consuming.service_addr, open_channel=given.open_channel) as client,
    ):
        consumer = await client.consumer(
            consuming.topic,
            consuming.subscription,
            name=consuming.consumer_name,
            subscription_type=consuming.subscription_type,
            key_filters=consuming.key_filters,
            start_position=consuming.start_position,
        )

        async def close_when_stopped() -> None:
            await stop.wait()
            await consumer.close()

        if consuming.seconds is not None:
            clock.call_later(consuming.seconds, stop.set)
        closing = TaskScope(report_failure)
        closing.start(close_when_stopped(), "close the consumer")
        closing.start(_tell_of_stops(consumer), "watch the subscription")
        # Printed messages show the progress themselves.
        with Meter(clock, "received", consuming.messages_max, quiet=True) as meter:
            try:
                await _receive_all(consumer, client.schemas, consuming, meter)
            finally:
                await closing.close()
            return meter.rate()


async def _tell_of_stops(consumer: "Consumer") -> None:
    """Say on stderr why nothing comes, or not all, if the subscription is blocked or stalled."""
    from pydanube.cli.standings import stopped_as_text

    async for standing in consumer.stops():
        for text in stopped_as_text([standing]):
            click.echo(f"warning: {text.strip()}", err=True)


async def _receive_all(
    consumer: "Consumer", schemas: "Schemas", consuming: Consuming, meter: "Meter"
) -> None:
    async for message in consumer:
        if message.schema_id is not None:
            try:
                await schemas.decode(message)
            except DanubeError as error:
                click.echo(f"warning: {error}", err=True)
        click.echo(_as_json(message) if consuming.output == "json" else _as_text(message))
        if consuming.nack:
            await consumer.nack(message, reason="danube consume --nack")
        else:
            await consumer.ack(message)
        meter.count(len(message.payload))
        if meter.messages == consuming.messages_max:
            return


def _as_text(message: "ReceivedMessage") -> str:
    from pydanube.cli.output import visible

    if len(message.payload) > PAYLOAD_SHOWN_BYTES_MAX:
        payload = f"({len(message.payload)} bytes)"
    else:
        payload = visible(message.payload.decode(errors="backslashreplace"))
    key = "" if message.routing_key is None else f" key={visible(message.routing_key)}"
    attributes = "".join(
        f" {visible(name)}={visible(value)}" for name, value in message.attributes.items()
    )
    schema = ""
    if message.schema_id is not None:
        schema = f" schema={message.schema_id}/{message.schema_version or VERSION_ASSUMED}"
    return f"{message.topic}@{message.offset}{key}{schema}{attributes}: {payload}"


def _as_json(message: "ReceivedMessage") -> str:
    import msgspec

    try:
        payload = {"payload": message.payload.decode()}
    except UnicodeDecodeError:
        payload = {"payload_base64": base64.b64encode(message.payload).decode()}
    fields = {
        "topic": message.topic,
        "offset": message.offset,
        "publish_time_ms": message.publish_time_ms,
        "producer_name": message.producer_name,
        "routing_key": message.routing_key,
        "attributes": message.attributes,
        "schema_id": message.schema_id,
        "schema_version": message.schema_version,
        **payload,
    }
    return msgspec.json.encode(fields).decode()
