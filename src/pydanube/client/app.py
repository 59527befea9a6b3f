"""Handlers instead of loops: functions that are called with what a subscription delivers.

app = App("http://127.0.0.1:6650")

@app.subscriber("/default/orders", subscription="billing")
async def bill(order: Order) -> None: ...

app.run()
"""

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from msgspec import Struct

from pydanube.client.client import DEFAULT_URL, Client, Opening, connect
from pydanube.client.codecs import Codec
from pydanube.client.consumer import Consumer
from pydanube.client.errors import UndecodablePayload
from pydanube.client.failing import agree_on_failures, tell_of_stops
from pydanube.client.handlers import (
    Handler,
    Subscriber,
    Undecodable,
    policy_wish,
    returned_by,
    wanted_by,
)
from pydanube.client.message import ReceivedMessage
from pydanube.client.producer import Producer
from pydanube.client.producer_schema import check_consumer_type, producer_schema
from pydanube.errors import Conflict, DanubeError, InvalidRequest, NotFound
from pydanube.model.policies import SubscriptionType
from pydanube.model.schemas import SchemaReference
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.process import StopSignals, run
from pydanube.runtime.tasks import TaskScope
from pydanube.runtime.threads import WorkerThreads

CONCURRENCY_MAX = 1_000
STOP_SECONDS_MAX = 30.0
VALUES_MAX = 1_000
"""How many values a handler of lists is called with at most."""
_ABSENT_SECONDS = 1.0
_REASON_CHARACTERS_MAX = 500

Function = TypeVar("Function", bound=Callable[..., Any])

_log = get_logger(__name__)


class Publisher(Struct, frozen=True, kw_only=True):
    """Where what a handler returns goes."""

    topic: str
    codec: Codec[Any]
    key: Callable[[Any], str | None] | None
    reliable: bool
    schema: str | SchemaReference | None = None


class App:
    """Calls functions with messages: acks what they are done with, nacks what they raised.

    Decorated functions stay as they are, so tests call them directly. It runs between `run` and a
    SIGTERM or Ctrl-C, or in `async with`; then no more is received, and what is being handled is
    finished and acked first. Delivery is at least once: a handler may meet a message again.
    """

    def __init__(
        self, url: str = DEFAULT_URL, *, stop_seconds_max: float = STOP_SECONDS_MAX
    ) -> None:
        self._url = url
        self._stop_seconds_max = stop_seconds_max
        self._subscribers: list[Subscriber] = []
        self._publishers: dict[Handler, Publisher] = {}
        self._running: _Running | None = None

    def subscriber(
        self,
        topic: str,
        *,
        subscription: str | None = None,
        type: object | None = None,
        subscription_type: SubscriptionType = "Shared",
        start_position: str | None = None,
        concurrency: int = 1,
        undecodable: Undecodable = "nack",
        schema: str | SchemaReference | None = None,
        retries: int | None = None,
        dead_letter: str | bool | None = None,
    ) -> Callable[[Function], Function]:
        """Call the function with each message of a subscription, named like it unless told.

        Its argument says what it takes: a dataclass, Struct, pydantic model, str, bytes or dict;
        `ReceivedMessage[Order]` for all that a message has; `list[Order]` for many at once. Up to
        `concurrency` calls run at once; with one, messages come in order. Plain functions run on
        threads. A payload of another type is nacked, or dropped. With a `schema`, a type that
        cannot read the subject's latest version ends the app at once.

        What is nacked comes again `retries` times, and then goes to a dead-letter topic:
        `dead_letter` names it, and True means the topic's name with -dlq behind it. False lets
        it block the subscription instead. Left out, what an operator has set holds, and where
        nobody has, 5 retries and True.
        """

        def register(function: Function) -> Function:
            if not 1 <= concurrency <= CONCURRENCY_MAX:
                raise InvalidRequest(
                    f"concurrency must be 1 to {CONCURRENCY_MAX}, not {concurrency}"
                )
            policy_wish(retries, dead_letter)  # Refused here, where the mistake is.
            wants, codec = wanted_by(function, type)
            self._subscribers.append(
                Subscriber(
                    handler=function,
                    topic=topic,
                    subscription=subscription or function.__name__,
                    subscription_type=subscription_type,
                    start_position=start_position,
                    concurrency=concurrency,
                    undecodable=undecodable,
                    wants=wants,
                    codec=codec,
                    schema=schema,
                    retries=retries,
                    dead_letter=dead_letter,
                )
            )
            return function

        return register

    def publisher(
        self,
        topic: str,
        *,
        type: object | None = None,
        key: Callable[[Any], str | None] | None = None,
        reliable: bool = True,
        schema: str | SchemaReference | None = None,
    ) -> Callable[[Function], Function]:
        """Publish what the handler returns, unless it is None, before its message is acked.

        `key` gives the routing key of a value. With a `schema`, its type is registered under the
        subject.
        """

        def register(function: Function) -> Function:
            codec = returned_by(function, type)
            self._publishers[function] = Publisher(
                topic=topic, codec=codec, key=key, reliable=reliable, schema=schema
            )
            return function

        return register

    def run(self) -> None:
        """Handle messages until SIGTERM or Ctrl-C; raises what no retry can mend."""
        run(self._run_until_stopped())

    async def _run_until_stopped(self) -> None:
        with StopSignals() as signals:
            async with self:
                assert self._running is not None
                await self._running.until(signals.wait())

    async def __aenter__(self) -> Self:
        if self._running is not None:
            raise Conflict("this app is running already")
        handlers = {each.handler for each in self._subscribers}
        for function in self._publishers:
            if function not in handlers:
                raise InvalidRequest(f"{function.__name__} publishes, but subscribes to nothing")
        running = _Running(connect(self._url), self._publishers, SystemClock())
        await running.start(self._subscribers)
        self._running = running
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.stop(self._stop_seconds_max)


class _Running:
    """An app between start and stop."""

    def __init__(
        self, opening: Opening[Client], publishers: dict[Handler, Publisher], clock: Clock
    ) -> None:
        self._opening = opening
        self._publishers = publishers
        self._clock = clock
        self._tasks = TaskScope(self._task_failed)
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopping = asyncio.Event()
        self._idle: set[asyncio.Task[Any]] = set()
        self._workers = 0
        self._ended = asyncio.Event()
        self._client: Client | None = None
        self._producers: dict[Handler, Producer[bytes]] = {}
        self._threads: list[WorkerThreads] = []

    async def start(self, subscribers: list[Subscriber]) -> None:
        """Open the producers, then let every subscriber join its subscription."""
        self._client = await self._opening
        try:
            for function, publisher in self._publishers.items():
                schema = publisher.schema
                if schema is not None:
                    named = await producer_schema(self._client.schemas, schema, publisher.codec)
                    schema = named.reference
                self._producers[function] = await self._client.producer(
                    publisher.topic, reliable=publisher.reliable, schema=schema
                )
        except BaseException:
            await self._client.close()
            raise
        for subscriber in subscribers:
            self._workers += 1
            self._tasks.start(self._serve(subscriber), f"subscriber of {subscriber.topic}")

    async def until(self, stopped: Any) -> None:  # noqa: ANN401  # Any awaitable.
        """Wait for a reason to stop; raises the failure that is one."""
        waiting = asyncio.get_running_loop().create_future()

        async def wait() -> None:
            await stopped
            if not waiting.done():
                waiting.set_result(None)

        self._tasks.start(wait(), "signals")
        await asyncio.wait((waiting, self._failed), return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            self._failed.result()

    async def stop(self, seconds_max: float) -> None:
        """Let handlers finish, then leave."""
        self._stopping.set()
        for task in list(self._idle):
            task.cancel()
        try:
            async with asyncio.timeout(seconds_max):
                while self._workers:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            _log.warning(
                "handlers did not finish in time; the broker delivers their messages again"
            )
        await self._tasks.close()
        if self._failed.done() and not self._failed.cancelled():
            self._failed.exception()
        for threads in self._threads:
            threads.stop()
        if self._client is not None:
            await self._client.close()

    def _task_failed(self, name: str, failure: BaseException) -> None:
        _log.error("a subscriber stopped", error=failure, task=name)
        if not self._failed.done():
            self._failed.set_exception(failure)

    # One subscriber.

    async def _serve(self, subscriber: Subscriber) -> None:
        try:
            consumer = await self._interruptible(self._join(subscriber))
            if consumer is None:
                return
            threads = None
            if not subscriber.is_async:
                threads = WorkerThreads(f"handler-{subscriber.topic}", subscriber.concurrency)
                self._threads.append(threads)
            self._tasks.start(tell_of_stops(consumer), f"state of {subscriber.subscription}")
            async with asyncio.TaskGroup() as group:
                for _ in range(subscriber.concurrency):
                    group.create_task(self._work(subscriber, consumer, threads))
        finally:
            self._workers -= 1
            self._ended.set()

    async def _join(self, subscriber: Subscriber) -> "Consumer[bytes]":
        """Subscribe, and wait for the topic if it is not there yet."""
        assert self._client is not None
        told = False
        while True:
            try:
                if subscriber.schema is not None:
                    await check_consumer_type(
                        self._client.schemas, subscriber.schema, subscriber.codec
                    )
                await agree_on_failures(self._client, subscriber)
                return await self._client.consumer(
                    subscriber.topic,
                    subscriber.subscription,
                    subscription_type=subscriber.subscription_type,
                    start_position=subscriber.start_position,
                )
            except NotFound as error:
                if not told:
                    _log.warning("waiting for a topic", topic=subscriber.topic, reason=str(error))
                told = True
            await self._clock.sleep(_ABSENT_SECONDS)

    async def _work(
        self, subscriber: Subscriber, consumer: "Consumer[bytes]", threads: WorkerThreads | None
    ) -> None:
        call = _caller(subscriber, threads)
        while not self._stopping.is_set():
            messages = await self._interruptible(self._receive(subscriber, consumer))
            if messages is None:
                return
            await self._handle(subscriber, consumer, messages, call)

    async def _interruptible(self, work: Any) -> Any:  # noqa: ANN401  # As the coroutine returns.
        """Wait for something that stopping may cut off; None then."""
        task = asyncio.current_task()
        assert task is not None
        self._idle.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            if self._stopping.is_set():
                task.uncancel()
                return None
            raise
        finally:
            self._idle.discard(task)

    async def _receive(
        self, subscriber: Subscriber, consumer: "Consumer[bytes]"
    ) -> list[ReceivedMessage[bytes]]:
        messages = [await consumer.receive()]
        while subscriber.wants == "values" and len(messages) < VALUES_MAX:
            waiting = consumer.receive_nowait()
            if waiting is None:
                break
            messages.append(waiting)
        return messages

    async def _handle(
        self,
        subscriber: Subscriber,
        consumer: "Consumer[bytes]",
        messages: list[ReceivedMessage[bytes]],
        call: Callable[[Any], Any],
    ) -> None:
        values: list[Any] = []
        decoded: list[ReceivedMessage[bytes]] = []
        for message in messages:
            try:
                value = subscriber.codec.decode(message.payload)
            except UndecodablePayload as error:
                if subscriber.wants != "message":
                    await self._settle_undecodable(subscriber, consumer, message, error)
                    continue
                value = None
            values.append(value)
            decoded.append(message)
        if not decoded:
            return
        argument = _argument(subscriber, decoded, values)
        try:
            result = await call(argument)
            await self._publish(subscriber, result)
        except Exception as error:  # noqa: BLE001  # Whatever a handler raises is a nack.
            _log.error(
                "a handler failed",
                error=error,
                topic=subscriber.topic,
                offset=decoded[0].offset,
            )
            reason = f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS_MAX]
            await _settle(partial(consumer.nack, reason=reason), decoded)
        else:
            await _settle(consumer.ack, decoded)

    async def _settle_undecodable(
        self,
        subscriber: Subscriber,
        consumer: "Consumer[bytes]",
        message: ReceivedMessage[bytes],
        error: UndecodablePayload,
    ) -> None:
        _log.error(
            "a payload cannot be decoded",
            topic=message.topic,
            offset=message.offset,
            reason=str(error),
            fate=subscriber.undecodable,
        )
        if subscriber.undecodable == "drop":
            await _settle(consumer.ack, [message])
        else:
            reason = str(error)[:_REASON_CHARACTERS_MAX]
            await _settle(partial(consumer.nack, reason=reason), [message])

    async def _publish(self, subscriber: Subscriber, result: Any) -> None:  # noqa: ANN401
        publisher = self._publishers.get(subscriber.handler)
        if publisher is None or result is None:
            return
        key = publisher.key(result) if publisher.key is not None else None
        payload = publisher.codec.encode(result)
        await self._producers[subscriber.handler].send(payload, routing_key=key)


def _caller(subscriber: Subscriber, threads: WorkerThreads | None) -> Callable[[Any], Any]:
    if threads is None:
        return subscriber.handler

    async def call(argument: Any) -> Any:  # noqa: ANN401  # What the handler takes and gives.
        return await threads.run(partial(subscriber.handler, argument))

    return call


def _argument(
    subscriber: Subscriber, messages: list[ReceivedMessage[bytes]], values: list[Any]
) -> object:
    match subscriber.wants:
        case "message":
            return messages[0].with_codec(subscriber.codec)
        case "values":
            return values
        case "value":
            return values[0]


async def _settle(
    settle: Callable[[ReceivedMessage[Any]], Any], messages: list[ReceivedMessage[bytes]]
) -> None:
    """Ack or nack; what could not be settled is delivered again, which is no reason to stop."""
    outcomes = await asyncio.gather(
        *(settle(message) for message in messages), return_exceptions=True
    )
    for message, outcome in zip(messages, outcomes, strict=True):
        if isinstance(outcome, DanubeError):
            _log.warning(
                "a message was not settled",
                topic=message.topic,
                offset=message.offset,
                reason=str(outcome),
            )
        elif isinstance(outcome, BaseException):
            raise outcome
