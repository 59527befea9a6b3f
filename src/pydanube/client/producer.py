"""Publishes messages to a topic or to its partitions, across restarts and moves of brokers."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Generic

from pydanube.client.brokers import Brokers
from pydanube.client.codecs import BYTES, Codec, Value
from pydanube.client.connection import Connection
from pydanube.client.errors import SessionUnknown
from pydanube.client.message import SentBatch, SentMessage
from pydanube.client.options import SendOptions
from pydanube.client.producer_schema import ProducerSchema
from pydanube.client.room import Room
from pydanube.client.routing import PartitionRouter
from pydanube.client.session import SESSION_IDS, Session
from pydanube.errors import (
    Conflict,
    DanubeError,
    InvalidRequest,
    NotFound,
    NotSupported,
    Overloaded,
    Unavailable,
)
from pydanube.model.message import DELIVER_AFTER, DELIVER_AT, TTL, Message
from pydanube.model.names import partition_name
from pydanube.model.policies import DispatchStrategy
from pydanube.observability.logging import get_logger
from pydanube.runtime.tasks import TaskScope

if TYPE_CHECKING:
    import pyarrow as pa

    from pydanube.client.batch_producer import BatchProducer
    from pydanube.client.gathering import Gatherer

IN_FLIGHT_MAX = 10_000
IN_FLIGHT_BYTES_MAX = 64 * 1024 * 1024
"""What may wait for its acknowledgement; whoever sends more waits before it is sent."""
CLOSE_SECONDS_MAX = 5.0

_log = get_logger(__name__)


class Producer(Generic[Value]):
    """Publishes to one topic; `send` may be called by many tasks at once.

    What is sent in one turn of the event loop travels as one batch. When too much waits for its
    acknowledgement, `send` waits first.

    When `send` returns, the broker has acknowledged: on a reliable topic the message is as durable
    as the topic promises, and stored once, however often it had to be sent. When it raises a
    retryable error, the message may or may not be stored. Other brokers than PyDanube's may store a
    message twice whose acknowledgement was lost.
    """

    def __init__(
        self,
        brokers: Brokers,
        partitions: list["TopicProducer"],
        *,
        name: str,
        codec: Codec[Value],
        options: SendOptions,
        schema: ProducerSchema | None = None,
    ) -> None:
        self.name = name
        self._brokers = brokers
        self._partitions = partitions
        self._router = PartitionRouter(len(partitions))
        self._codec = codec
        self._encode = codec.encode
        self._schema_id = schema.name.schema_id if schema is not None else None
        self._schema_version = schema.name.version if schema is not None else None
        self._send_seconds_max = options.seconds_max
        self._room = Room(IN_FLIGHT_MAX, IN_FLIGHT_BYTES_MAX)
        self._only = partitions[0] if len(partitions) == 1 else None
        self.closed = False
        for partition in partitions:
            partition.share(self._room)

    @property
    def topics(self) -> list[str]:
        """The topic itself, or its partitions in order."""
        return [partition.topic for partition in self._partitions]

    async def send(
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
        if not self._room.has_room:
            try:
                async with asyncio.timeout(self._send_seconds_max):
                    await self._room.wait()
            except TimeoutError as error:
                raise Unavailable(
                    f"the broker acknowledged nothing within {self._send_seconds_max:g} s, and "
                    f"{self._room.taken} messages wait already; this one was not sent"
                ) from error
        return await self.send_nowait(
            payload,
            attributes=attributes,
            routing_key=routing_key,
            deliver_at_ms=deliver_at_ms,
            deliver_after_ms=deliver_after_ms,
            ttl_ms=ttl_ms,
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
    ) -> "asyncio.Future[SentMessage]":
        """Publish one message as `send` does, and return what `send` would wait for.

        Everything sent in one turn of the event loop travels together. Overloaded, and nothing is
        sent, while too many messages are not acknowledged.
        """
        if self.closed:
            raise Conflict("this producer is closed")
        data = self._encode(payload)
        if deliver_at_ms is not None or deliver_after_ms is not None or ttl_ms is not None:
            timing = {DELIVER_AT: deliver_at_ms, DELIVER_AFTER: deliver_after_ms, TTL: ttl_ms}
            given = {name: str(value) for name, value in timing.items() if value is not None}
            attributes = {**(attributes or {}), **given}
        self._room.take(len(data))
        partition = self._only
        if partition is None or routing_key is not None:
            partition = self._pick(routing_key, len(data))
        return partition.post(data, routing_key, attributes)

    def _pick(self, routing_key: str | None, taken: int) -> "TopicProducer":
        try:
            return self._partitions[self._router.pick(routing_key)]
        except UnicodeEncodeError as error:
            self._room.leave(1, taken)
            raise InvalidRequest(f"the routing key is no text: {error}") from None

    async def send_batch(self, data: object) -> list[SentBatch]:
        """Publish many messages at once, and return where they lie, in their order per partition.

        `data` is an Arrow table or record batch, a frame of pandas or polars, or a list of bytes,
        texts or dicts; or, if this producer has a type, a list of such values. With a column
        `payload` its rows are messages, and the other columns what else they have: routing_key,
        attributes, publish_time, producer_name, schema_id, schema_version. Without, each row is
        sent as a JSON object. Large data is sent in pieces; when a later one fails, the earlier
        ones are stored. The deadline of `send` holds for each.
        """
        if self.closed:
            raise Conflict("this producer is closed")
        from pydanube.client.rows import rows_of, split_by_partition  # Arrow, for those who use it.

        if self._codec is not BYTES and isinstance(data, list | tuple):
            data = [self._codec.encode(value) for value in data]
        rows = rows_of(
            data,
            self.name,
            self._brokers.surroundings.clock.now_ms(),
            schema_id=self._schema_id,
            schema_version=self._schema_version,
        )
        sent: list[SentBatch] = []
        for index, part in split_by_partition(rows, self._router, len(self._partitions)):
            sent += await self._partitions[index].send_rows(part, self._send_seconds_max)
        return sent

    async def close(self) -> None:
        """Wait for what is under way, though not for long, and send no more.

        Under a name of its own the broker is told; a given one may come back.
        """
        if self.closed:
            return
        self.closed = True
        for partition in self._partitions:
            partition.flush()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._room.wait_until_empty()
        await asyncio.gather(*(partition.leave() for partition in self._partitions))


class TopicProducer:
    """A producer on one topic or partition, attached again whenever its broker forgot or moved it.

    Its id is stable by name, so attaching again is harmless, and needs no health polls: the next
    send finds out. Messages of reliable topics are numbered, so that repeating them is harmless.
    """

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        name: str,
        dispatch: DispatchStrategy,
        *,
        options: SendOptions,
        is_temporary: bool,
        schema: ProducerSchema | None = None,
    ) -> None:
        self._options = options
        self._schema = schema.reference if schema is not None else None
        self._schema_id = schema.name.schema_id if schema is not None else None
        self._schema_version = schema.name.version if schema is not None else None
        self._room = Room(IN_FLIGHT_MAX, IN_FLIGHT_BYTES_MAX)
        self._is_temporary = is_temporary
        self.topic = topic
        self.name = name
        self.last_refusal: DanubeError | None = None
        self._brokers = brokers
        self._dispatch: DispatchStrategy = dispatch
        self._connection = brokers.service
        self._producer_id = 0
        self._mending = asyncio.Lock()
        self._mended = 0  # Attempts, whether they helped or not.
        self._attached = 0  # Those that helped.
        self._session = self._new_session()
        self._takes_batches = options.batch_messages_max > 1
        self._batches: BatchProducer | None = None
        self._gatherer: Gatherer | None = None
        self._alone = TaskScope(_report)

    async def attach(self) -> None:
        """Create the producer, and the topic where allowed; retries as every client does."""
        if self._takes_batches:
            import pydanube.client.gathering  # noqa: F401  # Now, rather than at the first send.

        self._connection, self._producer_id = await self._brokers.attach(
            self.topic, self._connection, self._create
        )

    # Many at once.

    def share(self, room: Room) -> None:
        """Let what is posted from now on leave that room once it is answered."""
        self._room = room

    def post(
        self, payload: bytes, routing_key: str | None, attributes: Mapping[str, str] | None
    ) -> "asyncio.Future[SentMessage]":
        """Send a message with all that are sent in this turn of the event loop."""
        if self._takes_batches:
            if self._gatherer is None:
                self._gatherer = self._new_gatherer()
            return self._gatherer.add(payload, routing_key, attributes)
        answer: asyncio.Future[SentMessage] = asyncio.get_running_loop().create_future()
        message = Message(
            payload=payload,
            publish_time_ms=self._brokers.surroundings.clock.now_ms(),
            producer_name=self.name,
            routing_key=routing_key,
            attributes=attributes,
            schema_id=self._schema_id,
            schema_version=self._schema_version,
        )
        self._post_alone(message, answer)
        return answer

    def _new_gatherer(self) -> "Gatherer":
        from pydanube.client.gathering import Common, Gatherer

        return Gatherer(
            self.topic,
            self._batch_producer(),
            self._options.seconds_max,
            self._room,
            self._post_alone,
            self._options,
            Common(self.name, self._schema_id, self._schema_version),
            self._brokers.surroundings.clock,
        )

    def flush(self) -> None:
        """Send what lingers."""
        if self._gatherer is not None:
            self._gatherer.flush()

    async def send_rows(self, rows: "pa.RecordBatch", seconds_max: float) -> list[SentBatch]:
        """Send a batch; message by message where brokers take no batches."""
        if self._takes_batches:
            try:
                self.flush()  # What was sent before it stays before it.
                return await self._batch_producer().send(rows, seconds_max)
            except NotSupported:
                self._no_batches()
        sent: list[SentBatch] = []
        for row in rows.to_pylist(maps_as_pydicts="strict"):
            message = Message(publish_time_ms=row.pop("publish_time"), **row)
            offset = (await self._send_in_time(message, seconds_max)).offset
            sent.append(SentBatch(self.topic, offset, 1))
        return sent

    def _batch_producer(self) -> "BatchProducer":
        if self._batches is None:
            from pydanube.client.batch_producer import BatchProducer

            self._batches = BatchProducer(
                self._brokers,
                self.topic,
                self.name,
                self._dispatch,
                self._options.compression,
                self._schema.subject if self._schema is not None else None,
            )
        return self._batches

    def _no_batches(self) -> None:
        if self._takes_batches:
            self._takes_batches = False
            _log.warning(
                "the broker has no Arrow Flight; sending message by message", topic=self.topic
            )

    # One by one, as every Danube broker takes them.

    def _post_alone(self, message: Message, answer: "asyncio.Future[SentMessage]") -> None:
        self._no_batches()

        async def send_alone() -> None:
            task = asyncio.current_task()
            assert task is not None
            answer.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)
            try:
                sent = await self._send_in_time(message, self._options.seconds_max)
            except DanubeError as error:
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(sent)
            finally:
                self._room.leave(1, len(message.payload))
                if not answer.done():
                    answer.set_exception(
                        Unavailable(
                            f"the producer of {self.topic} was closed before this was "
                            "acknowledged; it may or may not be stored"
                        )
                    )

        self._alone.start(send_alone(), f"send to {self.topic}")

    async def _send_in_time(self, message: Message, seconds_max: float) -> SentMessage:
        try:
            async with asyncio.timeout(seconds_max):
                return await self.send(message)
        except TimeoutError as error:
            raise Unavailable(
                f"{self.topic} acknowledged nothing within {seconds_max:g} s; "
                f"the message may or may not be stored (last refusal: {self.last_refusal})"
            ) from error

    async def send(self, message: Message) -> SentMessage:
        """Send until acknowledged or refused for good; the caller sets the deadline."""
        if self._dispatch != "Reliable":
            return await self._attempt(message, None, 0)
        while True:
            session = self._session
            try:
                return await self._send_in(session, message)
            except SessionUnknown:
                # Nothing of it was stored here: the topic is another one, or had forgotten.
                if self._session is session:
                    self._session = self._new_session()

    async def _send_in(self, session: Session, message: Message) -> SentMessage:
        sequence = session.begin()
        try:
            sent = await self._attempt(message, session, sequence)
        except BaseException:
            session.give_up(sequence)
            raise
        session.stored(sequence)
        return sent

    async def _attempt(
        self, message: Message, session: Session | None, sequence: int
    ) -> SentMessage:
        attempt = 0
        forgotten: int | None = None  # After which attachment the broker last said so.
        in_doubt = False  # Whether an earlier attempt may have succeeded.
        while True:
            number = None if session is None else await session.wait_for_turn(sequence)
            mended, attached = self._mended, self._attached
            try:
                request_id, offset = await self._connection.send(
                    self.topic, self._producer_id, message, number
                )
                return SentMessage(self.topic, request_id, offset)
            except DanubeError as error:
                if isinstance(error, SessionUnknown) and in_doubt:
                    raise Unavailable(
                        f"{self.topic} has forgotten this producer; the message may or may not be "
                        "stored"
                    ) from error
                if not (error.retryable or isinstance(error, NotFound)):
                    raise
                refusal = error
            in_doubt = in_doubt or isinstance(refusal, Unavailable)
            if session is not None:
                session.failed(sequence)
            if isinstance(refusal, Overloaded):
                self.last_refusal = refusal
                await self._brokers.pause(attempt)
            else:
                await self._mend(mended, refusal, attempt)
            if isinstance(refusal, NotFound):
                # The broker has forgotten the producer. Said again, it is the topic that is gone.
                if forgotten is not None and forgotten < attached:
                    raise refusal
                forgotten = attached
            else:
                forgotten = None
            attempt += 1

    def _new_session(self) -> Session:
        return Session(self._brokers.surroundings.randomness.below(SESSION_IDS))

    async def _mend(self, mended: int, refusal: DanubeError, attempt: int) -> None:
        """Pause, look the topic up and attach, once for all senders that failed together."""
        self.last_refusal = refusal
        await self._brokers.pause_after(refusal, attempt)
        async with self._mending:
            if self._mended != mended:
                return
            try:
                connection = await self._brokers.serving(self.topic, self._connection)
                self._producer_id = await self._create(connection)
                self._connection = connection
                self._attached += 1
            except DanubeError as error:
                self.last_refusal = error
                if not error.retryable:
                    raise
            finally:
                self._mended += 1

    async def leave(self) -> None:
        """End what is under way, and give a name up that nobody will use again."""
        await self._alone.close()
        if self._batches is not None:
            await self._batches.close()
        if self._is_temporary and self._producer_id:
            with suppress(DanubeError):  # Other brokers forget by themselves.
                await self._connection.close_producer(self._producer_id)

    async def _create(self, connection: Connection) -> int:
        return await connection.create_producer(self.topic, self.name, self._dispatch, self._schema)


async def topics_to_produce_to(brokers: Brokers, topic: str, partitions: int | None) -> list[str]:
    """Return the partitions asked for or, when nothing was asked, those that exist."""
    if partitions is not None:
        return [partition_name(topic, index) for index in range(partitions)]
    return await brokers.partitions(topic) or [topic]


def topic_producers(
    brokers: Brokers,
    base: str,
    topics: list[str],
    name: str,
    dispatch: DispatchStrategy,
    *,
    options: SendOptions,
    is_temporary: bool,
    schema: ProducerSchema | None = None,
) -> list[TopicProducer]:
    """Return one producer per topic; those of partitions are numbered, as in every client."""
    numbered = [f"{name}-{index}" for index in range(len(topics))]
    names = [name] if topics == [base] else numbered
    return [
        TopicProducer(
            brokers,
            topic,
            own_name,
            dispatch,
            options=options,
            is_temporary=is_temporary,
            schema=schema,
        )
        for topic, own_name in zip(topics, names, strict=True)
    ]


def _report(name: str, failure: BaseException) -> None:
    _log.error("sending failed unexpectedly", name=name, error=failure)
