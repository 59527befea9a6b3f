# Written by tools/generate_sync.py; change the asynchronous classes, then run `make generate`.
"""The client for programs without an event loop: every call waits for its outcome.

with pydanube.sync.connect("http://127.0.0.1:6650") as client:
    with client.producer("/default/orders") as producer:
        producer.send(b"hello")
    with client.consumer("/default/orders", "billing") as consumer:
        for message in consumer:
            consumer.ack(message)

It is the asynchronous client on a thread of its own, so it can also be used where an event loop is
running, as in notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import override

from pydanube.client.blocking import Blocking, BlockingClient, BlockingContext, connect_blocking
from pydanube.client.client import DEFAULT_URL
from pydanube.client.client import connect as connect_async
from pydanube.client.codecs import Value
from pydanube.client.options import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, SEND_SECONDS_MAX
from pydanube.client.schemas import CREATED_BY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from datetime import datetime

    import pyarrow as pa

    from pydanube.client.batch_consumer import DeliveredBatch
    from pydanube.client.brokers import OpenChannel
    from pydanube.client.consumer import Consumer as AsyncConsumer
    from pydanube.client.flight import MessageBatch
    from pydanube.client.message import ReceivedMessage, SentBatch, SentMessage
    from pydanube.client.options import Compression
    from pydanube.client.producer import Producer as AsyncProducer
    from pydanube.client.reader import Reader as AsyncReader
    from pydanube.client.retry import RetryPolicy
    from pydanube.client.schema_calls import (
        CompatibilityReport,
        RegisteredSchema,
        SchemaVersion,
        SubjectSummary,
        TopicSchemaConfig,
        VersionSummary,
    )
    from pydanube.client.schemas import SchemaName
    from pydanube.client.schemas import Schemas as AsyncSchemas
    from pydanube.model.failure_policies import FailurePolicyChange
    from pydanube.model.policies import FailurePolicy, SubscriptionType
    from pydanube.model.schemas import SchemaReference, ValidationPolicy
    from pydanube.model.standing import SubscriptionStanding
    from pydanube.runtime.clock import Clock
    from pydanube.runtime.randomness import Randomness

__all__ = ["Client", "Consumer", "Producer", "Reader", "Schemas", "connect"]


class Client(BlockingClient):
    """Connections to the brokers of one cluster, and what was opened over them.

    The blocking twin of `pydanube.Client`.
    """

    @override
    def close(self) -> None:
        """Close producers and consumers, then the connections."""
        self._close()

    @property
    def schemas(self) -> Schemas:
        """Its schemas."""
        return Schemas(self._inner.schemas, self._thread)

    @property
    def closed(self) -> bool:
        """Tell whether it is closed."""
        return self._inner.closed

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
    ) -> Producer[Value]:
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
        return self._open(
            self._inner.producer(
                topic,
                type=type,
                name=name,
                reliable=reliable,
                partitions=partitions,
                send_seconds_max=send_seconds_max,
                linger_ms=linger_ms,
                batch_messages_max=batch_messages_max,
                batch_bytes_max=batch_bytes_max,
                compression=compression,
                schema=schema,
            ),
            Producer[Value],
        )

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
    ) -> Consumer[Value]:
        """Join a subscription of a topic, or of all its partitions; it is made when absent.

        `type` is what messages hold; `message.value` gives it. With a `schema`, the type is refused
        if it cannot read what the subject's latest version describes.

        A new subscription starts at the topic's end unless `start_position` says earliest,
        offset:<n> or time:<milliseconds since 1970>; an existing one goes on where it stopped. A
        consumer that comes back under its old `name` takes over from itself.
        """
        return self._open(
            self._inner.consumer(
                topic,
                subscription,
                type=type,
                name=name,
                subscription_type=subscription_type,
                key_filters=key_filters,
                start_position=start_position,
                schema=schema,
            ),
            Consumer[Value],
        )

    def reader(
        self,
        topic: str,
        *,
        start: int | str | datetime = "earliest",
        end: int | str | datetime = "latest",
    ) -> Reader:
        """Read a reliable topic in batches, without a subscription, from `start` to before `end`.

        Both are offsets, "earliest", "latest", datetimes with their zone, or "time:<milliseconds
        since 1970>", which mean the first message published then or later. Nothing is sent yet.
        """
        return Reader(self._inner.reader(topic, start=start, end=end), self._thread)

    def change_failure_policy(
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
        return self._wait(
            self._inner.change_failure_policy(topic, subscription, change, unless_set=unless_set)
        )


class Producer(BlockingContext["AsyncProducer[Value]"], Generic[Value]):
    """Publishes to one topic; `send` may be called by many tasks at once.

    The blocking twin of `pydanube.Producer`.
    """

    @property
    def name(self) -> str:
        """Its name."""
        return self._inner.name

    @property
    def closed(self) -> bool:
        """Tell whether it is closed."""
        return self._inner.closed

    @property
    def topics(self) -> list[str]:
        """The topic itself, or its partitions in order."""
        return self._inner.topics

    def send(
        self,
        payload: Value,
        *,
        attributes: Mapping[str, str] | None = None,
        routing_key: str | None = None,
        deliver_at_ms: int | None = None,
        deliver_after_ms: int | None = None,
        ttl_ms: int | None = None,
    ) -> SentMessage:
        """Publish one message; equal routing keys go to one partition, in the order of sending.

        `payload` is of the producer's type: bytes, if it was opened without one.

        On a reliable topic of PyDanube it is not delivered before `deliver_at_ms` (since 1970), or
        before `deliver_after_ms` from now, and no later than `ttl_ms` from now.
        """
        return self._wait(
            self._inner.send(
                payload,
                attributes=attributes,
                routing_key=routing_key,
                deliver_at_ms=deliver_at_ms,
                deliver_after_ms=deliver_after_ms,
                ttl_ms=ttl_ms,
            )
        )

    def send_nowait(
        self,
        payload: Value,
        *,
        attributes: Mapping[str, str] | None = None,
        routing_key: str | None = None,
        deliver_at_ms: int | None = None,
        deliver_after_ms: int | None = None,
        ttl_ms: int | None = None,
    ) -> Future[SentMessage]:
        """Publish one message as `send` does, and return what `send` would wait for.

        Everything sent in one turn of the event loop travels together. Overloaded, and nothing is
        sent, while too many messages are not acknowledged.
        """
        return self._begin(
            lambda: self._inner.send_nowait(
                payload,
                attributes=attributes,
                routing_key=routing_key,
                deliver_at_ms=deliver_at_ms,
                deliver_after_ms=deliver_after_ms,
                ttl_ms=ttl_ms,
            )
        )

    def send_batch(self, data: object) -> list[SentBatch]:
        """Publish many messages at once, and return where they lie, in their order per partition.

        `data` is an Arrow table or record batch, a frame of pandas or polars, or a list of bytes,
        texts or dicts; or, if this producer has a type, a list of such values. With a column
        `payload` its rows are messages, and the other columns what else they have: routing_key,
        attributes, publish_time, producer_name, schema_id, schema_version. Without, each row is
        sent as a JSON object. Large data is sent in pieces; when a later one fails, the earlier
        ones are stored. The deadline of `send` holds for each.
        """
        return self._wait(self._inner.send_batch(data))

    @override
    def close(self) -> None:
        """Wait for what is under way, though not for long, and send no more.

        Under a name of its own the broker is told; a given one may come back.
        """
        self._end(self._inner.close())


class Consumer(BlockingContext["AsyncConsumer[Value]"], Generic[Value]):
    """A member of one subscription; `receive` and `ack` may be called by many tasks at once.

    The blocking twin of `pydanube.Consumer`.
    """

    @property
    def closed(self) -> bool:
        """Tell whether it is closed."""
        return self._inner.closed

    @property
    def topics(self) -> list[str]:
        """The topic itself, or its partitions in order."""
        return self._inner.topics

    def receive(self, *, seconds_max: float | None = None) -> ReceivedMessage[Value]:
        """Wait for the next message; those of one partition come in the order of the broker.

        TimeoutError if none comes within `seconds_max`.
        """
        return self._wait(self._inner.receive(seconds_max=seconds_max))

    def ack(self, message: ReceivedMessage[Any]) -> None:
        """Report a message as done: once this returns it is not delivered again."""
        self._wait(self._inner.ack(message))

    def ack_until(self, last: ReceivedMessage[Any] | DeliveredBatch) -> None:
        """Report a message or batch as done, and all before it that this consumer has received.

        That is what lies at lower offsets of the same topic or partition, was received here, and
        was neither acked nor nacked; what other consumers have, or what waits unread, is not
        touched. Once this returns nothing of it is delivered again.
        """
        self._wait(self._inner.ack_until(last))

    def nack(
        self,
        message: ReceivedMessage[Any],
        *,
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> None:
        """Give a message back, to be delivered again as the failure policy says."""
        self._wait(self._inner.nack(message, delay_ms=delay_ms, reason=reason))

    def seek(self, position: str) -> None:
        """Move the subscription, for all its consumers; returns once that is durable.

        `position` is earliest, latest, time:<milliseconds since 1970> or, for a topic without
        partitions, offset:<n>. Unread messages are dropped; those in other hands stay there.
        """
        self._wait(self._inner.seek(position))

    def unsubscribe(self) -> None:
        """Close, and delete the subscription; Conflict if others consume from it."""
        self._wait(self._inner.unsubscribe())

    def standings(self) -> list[SubscriptionStanding]:
        """Tell how the subscription gets on, on each topic or partition that is served now.

        It says what blocks or stalls it, how far it is behind, and which failure policy holds.
        NotSupported, or InvalidRequest, from brokers that cannot tell.
        """
        return self._wait(self._inner.standings())

    def stops(self) -> Iterator[SubscriptionStanding]:
        """Iterate over what stops the subscription, and over what goes on again.

        That is a blocked or stalled state with its offset, reason and next step, and then the state
        in which it goes on. It looks every five seconds; what is stopped already comes first. Ends
        when the consumer is closed, or with a broker that cannot tell.
        """
        return self._iterate(self._inner.stops())

    def batches(self) -> Iterator[DeliveredBatch]:
        """Receive Arrow batches of a reliable topic instead of messages, until closed.

        Call it first, and once: unread single messages are left to be delivered again, as another
        attempt. Settle each
        batch with `ack_batch`, `ack_until` or `nack_batch`; after a reconnect some come again.
        From brokers without Arrow Flight, what arrives together is a batch.
        """
        return self._iterate(self._inner.batches())

    def ack_batch(self, batch: DeliveredBatch) -> None:
        """Report all messages of a batch as done: once this returns they are not delivered again.

        Unlike single messages, batches can be settled only while this consumer is open. To settle
        some rows alone, give `batch.slice(start, end)`.
        """
        self._wait(self._inner.ack_batch(batch))

    def nack_batch(
        self, batch: DeliveredBatch, *, delay_ms: int = 0, reason: str | None = None
    ) -> None:
        """Give all messages of a batch back, to be delivered again as the failure policy says."""
        self._wait(self._inner.nack_batch(batch, delay_ms=delay_ms, reason=reason))

    @override
    def close(self) -> None:
        """Stop receiving. Unread messages are dropped; the broker delivers them again.

        Messages received before can still be acked until the client closes. The place is free for
        others at once. A given name may come back; one that was made up is forgotten.
        """
        self._end(self._inner.close())

    def __iter__(self) -> Iterator[ReceivedMessage[Value]]:
        return self

    def __next__(self) -> ReceivedMessage[Value]:
        try:
            return self._wait(self._inner.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None


class Reader(Blocking["AsyncReader"]):
    """The messages of a reliable topic, or of all its partitions, between two positions.

    The blocking twin of `pydanube.Reader`.
    """

    @property
    def topic(self) -> str:
        """Its topic."""
        return self._inner.topic

    def batches(self) -> Iterator[MessageBatch]:
        """Iterate over Arrow batches: those of one partition in order, one partition after another.

        A batch has the columns of a message; its rows lie at `offset`, `offset + 1` and so on.
        NotSupported where brokers have no Arrow Flight.
        """
        return self._iterate(self._inner.batches())

    def to_arrow(self) -> pa.Table:
        """Read everything into a table: topic, offset, and the columns of a message."""
        return self._wait(self._inner.to_arrow())

    def to_pandas(self) -> Any:
        """Read everything into a pandas DataFrame."""
        return self._wait(self._inner.to_pandas())

    def to_polars(self) -> Any:
        """Read everything into a polars DataFrame."""
        return self._wait(self._inner.to_polars())


class Schemas(Blocking["AsyncSchemas"]):
    """The schema registry of the cluster a client is connected to.

    The blocking twin of `pydanube.Schemas`.
    """

    def register(
        self,
        subject: str,
        definition: bytes | str,
        schema_type: str = "json_schema",
        *,
        description: str = "",
        created_by: str = CREATED_BY,
        tags: Sequence[str] = (),
    ) -> RegisteredSchema:
        """Add a version to a subject, created when absent, or find the one that is equal.

        Conflict if it is not compatible with the earlier ones; the error names place and rule.
        """
        return self._wait(
            self._inner.register(
                subject,
                definition,
                schema_type,
                description=description,
                created_by=created_by,
                tags=tags,
            )
        )

    def get(self, subject: str, version: int | None = None) -> SchemaVersion:
        """Return a version of a subject; the latest if none is named."""
        return self._wait(self._inner.get(subject, version))

    def get_by_id(self, schema_id: int, version: int | None = None) -> SchemaVersion:
        """Return what a message carries: the version of the subject with that id."""
        return self._wait(self._inner.get_by_id(schema_id, version))

    def versions(self, subject: str) -> list[VersionSummary]:
        """Return the versions of a subject, the oldest first."""
        return self._wait(self._inner.versions(subject))

    def subjects(self) -> list[SubjectSummary]:
        """Return all subjects."""
        return self._wait(self._inner.subjects())

    def check(
        self,
        subject: str,
        definition: bytes | str,
        schema_type: str = "json_schema",
        *,
        mode: str | None = None,
    ) -> CompatibilityReport:
        """Tell whether a definition could be the next version; changes nothing."""
        return self._wait(self._inner.check(subject, definition, schema_type, mode=mode))

    def set_compatibility(self, subject: str, mode: str) -> None:
        """Set what later versions are held to.

        none, backward, forward, full, or one of the last three with _transitive behind it.
        """
        self._wait(self._inner.set_compatibility(subject, mode))

    def delete_version(self, subject: str, version: int, *, force: bool = False) -> None:
        """Delete a version; Conflict while a topic needs it, unless forced."""
        self._wait(self._inner.delete_version(subject, version, force=force))

    def delete_subject(self, subject: str, *, force: bool = False) -> list[int]:
        """Delete a subject, and return the versions it had; Conflict while topics are bound."""
        return self._wait(self._inner.delete_subject(subject, force=force))

    def configure_topic(
        self,
        topic: str,
        subject: str,
        *,
        policy: ValidationPolicy = "enforce",
        validate_payloads: bool = True,
    ) -> None:
        """Bind a topic, or all its partitions, to a subject, and say how strict it is."""
        self._wait(
            self._inner.configure_topic(
                topic, subject, policy=policy, validate_payloads=validate_payloads
            )
        )

    def set_validation_policy(
        self, topic: str, policy: ValidationPolicy, *, validate_payloads: bool = True
    ) -> None:
        """Say how strict a topic is that is bound to a subject."""
        self._wait(
            self._inner.set_validation_policy(topic, policy, validate_payloads=validate_payloads)
        )

    def topic_config(self, topic: str) -> TopicSchemaConfig:
        """Return what a topic asks of its messages."""
        return self._wait(self._inner.topic_config(topic))

    def resolve(self, reference: SchemaReference) -> SchemaName:
        """Return what messages of a producer with that reference carry."""
        return self._wait(self._inner.resolve(reference))

    def decode(self, message: ReceivedMessage) -> object:
        """Return a message's payload as values, by the schema that the message names.

        Records and objects become dicts. InvalidRequest if it names none, or the payload is not
        what the schema says.
        """
        return self._wait(self._inner.decode(message))

    def check_reader(self, subject: str, definition: bytes, schema_type: str) -> None:
        """Refuse a definition that cannot read what the latest version of a subject describes."""
        self._wait(self._inner.check_reader(subject, definition, schema_type))


def connect(
    url: str = DEFAULT_URL,
    *,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    open_channel: OpenChannel | None = None,
) -> Client:
    """Talk to the cluster that the broker at `url` belongs to; nothing is sent yet.

    Several URLs, separated by commas, name brokers of one cluster: any that answers will do."""
    return connect_blocking(
        connect_async(
            url, retry=retry, clock=clock, randomness=randomness, open_channel=open_channel
        ),
        Client,
    )
