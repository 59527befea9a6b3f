"""The client: connect, produce, consume.

async with connect("http://127.0.0.1:6650") as client:
    async with client.producer("/default/orders") as producer:
        await producer.send(b"hello")
    async with client.consumer("/default/orders", "billing") as consumer:
        async for message in consumer:
            await consumer.ack(message)
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pydanube.client.brokers import Brokers, OpenChannel, Surroundings
from pydanube.client.codecs import Value, codec_for
from pydanube.client.connection import Connection, Subscription
from pydanube.client.consumer import Consumer
from pydanube.client.options import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    SEND_SECONDS_MAX,
    Compression,
    SendOptions,
)
from pydanube.client.producer import Producer, topic_producers, topics_to_produce_to
from pydanube.client.producer_schema import check_consumer_type, producer_schema
from pydanube.client.retry import RetryPolicy
from pydanube.client.schemas import Schemas
from pydanube.errors import InvalidRequest, NotFound
from pydanube.model.failure_policies import FailurePolicyChange
from pydanube.model.names import check_topic_name
from pydanube.model.policies import FailurePolicy, SubscriptionType
from pydanube.model.schemas import SchemaReference
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.randomness import Randomness, SystemRandomness
from pydanube.wire.calls import ExchangeChannel

if TYPE_CHECKING:
    from pydanube.client.reader import Reader

DEFAULT_URL = "http://127.0.0.1:6650"
PARTITIONS_MAX = 10_000


class Closeable(Protocol):
    """What an `Opening` opens."""

    @property
    def closed(self) -> bool:
        """Tell whether it has been closed."""

    async def close(self) -> None:
        """Release it."""


Opened = TypeVar("Opened", bound=Closeable)


class Opening(Generic[Opened]):
    """Something about to be opened: `await` it and close it yourself, or use `async with`."""

    def __init__(self, open_it: Callable[[], Awaitable[Opened]]) -> None:
        self._open_it = open_it
        self._opened: Opened | None = None

    def __await__(self) -> Generator[Any, None, Opened]:
        return self._open_it().__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._open_it()
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._opened is not None, "left before it was entered"
        await self._opened.close()


class Client:
    """Connections to the brokers of one cluster, and what was opened over them.

    Closing it closes its producers and consumers. One event loop; not for other threads.
    """

    def __init__(self, service_urls: Sequence[str], surroundings: Surroundings) -> None:
        self._brokers = Brokers(service_urls, surroundings)
        self._opened: list[Closeable] = []
        self.schemas = Schemas(self._brokers)
        """The schema registry."""
        self.closed = False

    def producer(
        self,
        topic: str,
        *,
        type: type[Value] = bytes,  # type: ignore[assignment]  # Value's own default.
        name: str | None = None,
        reliable: bool = True,
        partitions: int | None = None,
        send_seconds_max: float = SEND_SECONDS_MAX,
        linger_ms: float = 0,
        batch_messages_max: int = BATCH_MESSAGES_MAX,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        compression: Compression = "none",
        schema: str | SchemaReference | None = None,
    ) -> Opening[Producer[Value]]:
        """Publish to a topic, created when absent and allowed.

        `type` is what is sent: bytes, str, a dataclass, a msgspec Struct or a pydantic model.
        `reliable` must be what the topic is, if it exists. With `partitions` the topic consists of
        that many; without, those that exist are used, or else the topic itself.

        Messages sent together travel as batches of at most `batch_messages_max` messages and about
        `batch_bytes_max` bytes; `linger_ms` makes the first of a batch wait for others. With
        `batch_messages_max=1` each message is a call of its own. Batches are packed by
        `compression`, and stored as they were sent.

        With a `schema`, a subject's name or a reference, messages name it; that of a `type` is
        registered under the subject, and refused if it does not fit the earlier versions.
        """
        options = SendOptions(
            seconds_max=send_seconds_max,
            linger_ms=linger_ms,
            batch_messages_max=batch_messages_max,
            batch_bytes_max=batch_bytes_max,
            compression=compression,
        )

        async def open_producer() -> Producer[Value]:
            check_topic_name(topic)
            options.check()
            codec = codec_for(type)
            if partitions is not None and not 1 <= partitions <= PARTITIONS_MAX:
                raise InvalidRequest(f"partitions must be 1 to {PARTITIONS_MAX}, not {partitions}")
            named = None
            if schema is not None:
                named = await producer_schema(self.schemas, schema, codec)
            topics = await topics_to_produce_to(self._brokers, topic, partitions)
            own_name = name or self._generated_name("producer")
            attached = topic_producers(
                self._brokers,
                topic,
                topics,
                own_name,
                "Reliable" if reliable else "NonReliable",
                options=options,
                schema=named,
                is_temporary=name is None,
            )
            for partition in attached:
                await partition.attach()
            producer = Producer(
                self._brokers, attached, name=own_name, codec=codec, options=options, schema=named
            )
            return self._keep(producer)

        return Opening(open_producer)

    def consumer(
        self,
        topic: str,
        subscription: str,
        *,
        type: type[Value] = bytes,  # type: ignore[assignment]  # Value's own default.
        name: str | None = None,
        subscription_type: SubscriptionType = "Shared",
        key_filters: Sequence[str] = (),
        start_position: str | None = None,
        schema: str | SchemaReference | None = None,
    ) -> Opening[Consumer[Value]]:
        """Join a subscription of a topic, or of all its partitions; it is made when absent.

        `type` is what messages hold; `message.value` gives it. With a `schema`, the type is refused
        if it cannot read what the subject's latest version describes.

        A new subscription starts at the topic's end unless `start_position` says earliest,
        offset:<n> or time:<milliseconds since 1970>; an existing one goes on where it stopped. A
        consumer that comes back under its old `name` takes over from itself.
        """

        async def open_consumer() -> Consumer[Value]:
            codec = codec_for(type)
            if schema is not None:
                await check_consumer_type(self.schemas, schema, codec)
            topics = await self._brokers.partitions(check_topic_name(topic))
            if not topics:
                raise NotFound(
                    f"topic {topic} does not exist; create it with a producer or `danube topics "
                    "create`"
                )
            wanted = Subscription(
                name=subscription,
                consumer_name=name or self._generated_name("consumer"),
                type=subscription_type,
                key_filters=key_filters,
                start_position=start_position,
                is_temporary=name is None,
            )
            consumer = Consumer(self._brokers, topics, wanted, codec)
            await consumer.open()
            for each in self._opened:
                if isinstance(each, Consumer) and not each.closed and each.is_namesake_of(consumer):
                    await each.displace()
            return self._keep(consumer)

        return Opening(open_consumer)

    def reader(
        self,
        topic: str,
        *,
        start: int | str | datetime = "earliest",
        end: int | str | datetime = "latest",
    ) -> "Reader":
        """Read a reliable topic in batches, without a subscription, from `start` to before `end`.

        Both are offsets, "earliest", "latest", datetimes with their zone, or "time:<milliseconds
        since 1970>", which mean the first message published then or later. Nothing is sent yet.
        """
        from pydanube.client.reader import Reader  # Arrow is loaded by those who use it.

        return Reader(self._brokers, check_topic_name(topic), start, end)

    async def change_failure_policy(
        self,
        topic: str,
        subscription: str,
        change: FailurePolicyChange,
        *,
        unless_set: bool = False,
    ) -> FailurePolicy:
        """Change what is given of what becomes of messages that fail; return what holds then.

        On all partitions of a topic, at once, and for a subscription to come. With `unless_set` a
        policy that somebody has set stays. NotSupported from brokers of Danube: their operators set
        policies.
        """
        topics = await self._brokers.partitions(check_topic_name(topic))
        if not topics:
            raise NotFound(
                f"topic {topic} does not exist; create it with a producer or `danube topics create`"
            )
        policy = FailurePolicy()
        for name in topics:

            async def change_here(connection: Connection, name: str = name) -> FailurePolicy:
                policies = connection.policies
                return await policies.change(name, subscription, change, unless_set=unless_set)

            _, policy = await self._brokers.attach(name, self._brokers.service, change_here)
        return policy

    @property
    def brokers(self) -> Brokers:
        """The brokers it talks to, for what is built upon a client."""
        return self._brokers

    async def close(self) -> None:
        """Close producers and consumers, then the connections."""
        self.closed = True
        opened, self._opened = self._opened, []
        await asyncio.gather(*(each.close() for each in opened))
        await self._brokers.close()

    def _keep(self, opened: Opened) -> Opened:
        self._opened = [each for each in self._opened if not each.closed]
        self._opened.append(opened)
        return opened

    def _generated_name(self, kind: str) -> str:
        return f"{kind}-{self._brokers.surroundings.randomness.below(2**48):012x}"


def connect(
    url: str = DEFAULT_URL,
    *,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    open_channel: OpenChannel | None = None,
) -> Opening[Client]:
    """Talk to the cluster that the broker at `url` belongs to; nothing is sent yet.

    Several URLs, separated by commas, name brokers of one cluster: any that answers will do.
    """

    async def open_client() -> Client:
        surroundings = Surroundings(
            open_channel=open_channel or http2_channel,
            clock=clock or SystemClock(),
            randomness=randomness or SystemRandomness(),
            retry=retry or RetryPolicy(),
        )
        return Client(service_urls(url), surroundings)

    return Opening(open_client)


def service_urls(text: str) -> list[str]:
    """Return the URLs that a text names, separated by commas."""
    urls = [with_scheme(each.strip()) for each in text.split(",") if each.strip()]
    if not urls:
        raise InvalidRequest("no broker to connect to: give a URL such as http://127.0.0.1:6650")
    return urls


def with_scheme(url: str) -> str:
    """Return the URL as brokers write it: a bare host:port is plain text."""
    return url if "://" in url else f"http://{url}"


def http2_channel(url: str) -> ExchangeChannel:
    """Open channels with our own engine."""
    from pydanube.wire.http2.channel import Http2Channel  # Loaded by those who connect.

    return Http2Channel(url)


def grpcio_channel(url: str) -> ExchangeChannel:
    """Open channels with the grpcio engine."""
    from pydanube.wire.grpcio.channel import GrpcioChannel  # grpc costs 100 ms to import.

    return GrpcioChannel(url)
