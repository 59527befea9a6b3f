"""Publishes messages to a topic or to its partitions, across restarts and moves of brokers."""

import asyncio
from collections.abc import Mapping

from pydanube.client.brokers import Brokers
from pydanube.client.connection import Connection
from pydanube.client.message import SentMessage
from pydanube.client.routing import PartitionRouter
from pydanube.client.session import SESSION_IDS, Session, SessionUnknown
from pydanube.errors import Conflict, DanubeError, NotFound, Overloaded, Unavailable
from pydanube.model.message import Message
from pydanube.model.names import partition_name
from pydanube.model.policies import DispatchStrategy

IN_FLIGHT_MAX = 1_000
SEND_SECONDS_MAX = 30.0


class Producer:
    """Publishes to one topic; `send` may be called by many tasks at once.

    When `send` returns, the broker has acknowledged: on a reliable topic the message is as durable
    as the topic promises, and stored once, however often it had to be sent. When it raises a
    retryable error, the message may or may not be stored. Other brokers than PyDanube's may store a
    message twice whose acknowledgement was lost.
    """

    def __init__(
        self, brokers: Brokers, partitions: list["TopicProducer"], *, send_seconds_max: float
    ) -> None:
        self._brokers = brokers
        self._partitions = partitions
        self._router = PartitionRouter(len(partitions))
        self._send_seconds_max = send_seconds_max
        self._in_flight = asyncio.Semaphore(IN_FLIGHT_MAX)
        self.closed = False

    @property
    def topics(self) -> list[str]:
        """The topic itself, or its partitions in order."""
        return [partition.topic for partition in self._partitions]

    async def send(
        self,
        payload: bytes,
        *,
        attributes: Mapping[str, str] | None = None,
        routing_key: str | None = None,
    ) -> SentMessage:
        """Publish one message; equal routing keys go to one partition, in the order of sending."""
        if self.closed:
            raise Conflict("this producer is closed")
        partition = self._partitions[self._router.pick(routing_key)]
        message = Message(
            payload=payload,
            publish_time_ms=self._brokers.surroundings.clock.now_ms(),
            producer_name=partition.name,
            routing_key=routing_key,
            attributes=attributes,
        )
        try:
            async with asyncio.timeout(self._send_seconds_max), self._in_flight:
                return await partition.send(message)
        except TimeoutError as error:
            raise Unavailable(
                f"{partition.topic} acknowledged nothing within {self._send_seconds_max:g} s; "
                f"the message may or may not be stored (last refusal: {partition.last_refusal})"
            ) from error

    async def close(self) -> None:
        """Send no more. The protocol has no call for this: the broker forgets by itself."""
        self.closed = True


class TopicProducer:
    """A producer on one topic or partition, attached again whenever its broker forgot or moved it.

    Its id is stable by name, so attaching again is harmless, and needs no health polls: the next
    send finds out. Messages of reliable topics are numbered, so that repeating them is harmless.
    """

    def __init__(self, brokers: Brokers, topic: str, name: str, dispatch: DispatchStrategy) -> None:
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

    async def attach(self) -> None:
        """Create the producer, and the topic where allowed; retries as every client does."""
        self._connection, self._producer_id = await self._brokers.attach(
            self.topic, self._connection, self._create
        )

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
        while True:
            number = None if session is None else await session.wait_for_turn(sequence)
            mended, attached = self._mended, self._attached
            try:
                request_id, offset = await self._connection.send(
                    self.topic, self._producer_id, message, number
                )
                return SentMessage(self.topic, request_id, offset)
            except DanubeError as error:
                if not (error.retryable or isinstance(error, NotFound)):
                    raise
                refusal = error
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
        await self._brokers.pause(attempt)
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

    async def _create(self, connection: Connection) -> int:
        return await connection.create_producer(self.topic, self.name, self._dispatch)


async def topics_to_produce_to(brokers: Brokers, topic: str, partitions: int | None) -> list[str]:
    """Return the partitions asked for or, when nothing was asked, those that exist."""
    if partitions is not None:
        return [partition_name(topic, index) for index in range(partitions)]
    return await brokers.service.partitions(topic) or [topic]


def topic_producers(
    brokers: Brokers, base: str, topics: list[str], name: str, dispatch: DispatchStrategy
) -> list[TopicProducer]:
    """Return one producer per topic; those of partitions are numbered, as in every client."""
    if topics == [base]:
        return [TopicProducer(brokers, base, name, dispatch)]
    return [
        TopicProducer(brokers, topic, f"{name}-{index}", dispatch)
        for index, topic in enumerate(topics)
    ]
