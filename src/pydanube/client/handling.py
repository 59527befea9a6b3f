"""Runs one handler: takes in what its subscription delivers, and settles what it has handled."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Any, Protocol

from pydanube.client.consumer import Consumer
from pydanube.client.errors import UndecodablePayload
from pydanube.client.handlers import Subscriber
from pydanube.client.lanes import Entry, Lanes
from pydanube.client.message import ReceivedMessage
from pydanube.errors import DanubeError
from pydanube.model.policies import FailurePolicy
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.threads import WorkerThreads
from pydanube.wire.danube.convert import DELIVERY_ATTEMPT_ATTRIBUTE

DEFAULT_CONCURRENCY = 100
"""How many keys are handled at once, unless told otherwise, by coroutines for single messages."""
IN_HAND_MAX = 256
"""How many messages are taken in ahead of those that are being handled."""
IN_HAND_BEHIND_FAILED_MAX = 10_000
"""While a failed message is waited for: it may come behind many others."""
AGAIN_MARGIN_MS = 5_000
"""How long after its delay a failed message may come, before its key goes on without it."""
VALUES_MAX = 1_000
"""How many values a handler of lists is called with at most."""
PUBLISHING_MAX = 1_000
"""How many results may be on their way to their topic while the next messages are handled."""
REASON_CHARACTERS_MAX = 500

Message = ReceivedMessage[bytes]
_log = get_logger(__name__)


class Publish(Protocol):
    """Sends what a handler returned."""

    async def __call__(self, result: object, /) -> "Awaitable[object] | None":
        """Return what to wait for until it is stored; None if there is nothing to send."""


def concurrency_of(subscriber: Subscriber) -> int:
    """Return how many calls may run at once.

    A plain function, and one that takes lists, is called once at a time unless it asks for more.
    """
    if subscriber.concurrency is not None:
        return subscriber.concurrency
    return DEFAULT_CONCURRENCY if subscriber.is_async and subscriber.wants != "values" else 1


class Handling:
    """One subscriber at work.

    Messages of one key are handled one after the other, and one that fails holds its key back
    until it came again. Those without a key come in order, too, unless a concurrency is asked for,
    but nothing waits for one that failed. A message is acked once its handler has returned and its
    result is stored, and never before.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        consumer: Consumer[bytes],
        policy: FailurePolicy | None,
        publish: Publish,
        clock: Clock,
        threads: WorkerThreads | None,
        stopping: asyncio.Event,
    ) -> None:
        self._subscriber = subscriber
        self._consumer = consumer
        self._policy = policy
        self._publish = publish
        self._clock = clock
        self._stopping = stopping
        self._call = _caller(subscriber, threads)
        self._concurrency = concurrency_of(subscriber)
        self._most = VALUES_MAX if subscriber.wants == "values" else 1
        self._lanes: Lanes[Message] = Lanes()
        self._arrivals = 0
        self._room = asyncio.Event()
        self._workers = 0
        self._publishing = 0
        self._group = asyncio.TaskGroup()

    async def run(self, interruptible: Callable[[Any], Any]) -> None:
        """Handle until stopping; what is being handled then is finished."""
        async with self._group:
            while not self._stopping.is_set():
                message = await interruptible(self._next())
                if message is None:
                    return
                self._take_in(message)
                while self._has_room() and (more := self._consumer.receive_nowait()) is not None:
                    self._take_in(more)
                self._employ()

    async def _next(self) -> Message:
        while not self._has_room():
            self._room.clear()
            await self._room.wait()
        return await self._consumer.receive()

    def _has_room(self) -> bool:
        most = IN_HAND_BEHIND_FAILED_MAX if self._lanes.awaited else IN_HAND_MAX
        return self._lanes.in_hand + self._publishing < max(most, self._most) + self._concurrency

    def _take_in(self, message: Message) -> None:
        self._arrivals += 1
        # Where messages have no place of their own, the order of arrival is theirs.
        offset = message.offset if self._policy is not None else self._arrivals
        self._lanes.arrived(self._lane(message), offset, message)

    def _lane(self, message: Message) -> Hashable:
        if message.routing_key is None and (self._subscriber.concurrency or 1) > 1:
            return message.topic, None, self._arrivals
        return message.topic, message.routing_key

    def _employ(self) -> None:
        if self._workers < self._concurrency and self._lanes.has_ready():
            self._workers += 1
            self._group.create_task(self._work())

    async def _work(self) -> None:
        try:
            while not self._stopping.is_set() and (entries := self._lanes.take(self._most)):
                self._employ()  # Others may go on with other keys.
                await self._handle(entries)
                self._room.set()
        finally:
            self._workers -= 1

    async def _handle(self, entries: list[Entry[Message]]) -> None:
        good, values, bad = self._decoded(entries)
        for entry, reason in bad:
            await self._undecodable(entry, reason)
        if not good:
            return
        argument = _argument(self._subscriber, good[0].item, values)
        try:
            stored = await self._publish(await self._call(argument))
            if stored is not None and self._may_go_on(good):
                self._publishing += 1
                self._lanes.settled(good)
                self._group.create_task(self._settle_stored(good, stored))
                return
            if stored is not None:
                await stored
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # It was not handled: neither acked nor nacked, it comes again.
            await self._failed(good, error)
        except Exception as error:  # noqa: BLE001  # Whatever a handler raises is a nack.
            await self._failed(good, error)
        else:
            await self._settle(self._consumer.ack, good)
            self._lanes.settled(good)

    def _may_go_on(self, entries: Sequence[Entry[Message]]) -> bool:
        """Tell whether the next message may be handled before the result of this one is stored."""
        is_keyless = len(entries) == 1 and entries[0].item.routing_key is None
        return is_keyless and self._publishing < PUBLISHING_MAX

    async def _settle_stored(
        self, entries: Sequence[Entry[Message]], stored: Awaitable[object]
    ) -> None:
        try:
            await stored
        except DanubeError as error:
            await self._nack(entries, error)
        else:
            await self._settle(self._consumer.ack, entries)
        finally:
            self._publishing -= 1
            self._room.set()

    def _decoded(
        self, entries: Sequence[Entry[Message]]
    ) -> tuple[list[Entry[Message]], list[Any], list[tuple[Entry[Message], UndecodablePayload]]]:
        good: list[Entry[Message]] = []
        values: list[Any] = []
        bad: list[tuple[Entry[Message], UndecodablePayload]] = []
        for entry in entries:
            if self._subscriber.wants == "message":
                good.append(entry)
                continue
            try:
                values.append(self._subscriber.codec.decode(entry.item.payload))
            except UndecodablePayload as error:
                bad.append((entry, error))
            else:
                good.append(entry)
        return good, values, bad

    async def _undecodable(self, entry: Entry[Message], error: UndecodablePayload) -> None:
        _log.error(
            "a payload cannot be decoded",
            topic=entry.item.topic,
            offset=entry.item.offset,
            reason=str(error),
            fate=self._subscriber.undecodable,
        )
        if self._subscriber.undecodable == "drop":
            await self._settle(self._consumer.ack, [entry])
            self._lanes.settled([entry])
        else:
            await self._give_back([entry], str(error))

    # What fails.

    async def _failed(self, entries: Sequence[Entry[Message]], error: BaseException) -> None:
        self._log_failure(entries, error)
        await self._give_back(entries, _reason(error))

    async def _nack(self, entries: Sequence[Entry[Message]], error: BaseException) -> None:
        self._log_failure(entries, error)
        await self._settle(partial(self._consumer.nack, reason=_reason(error)), entries)

    def _log_failure(self, entries: Sequence[Entry[Message]], error: BaseException) -> None:
        message = entries[0].item
        _log.error("a handler failed", error=error, topic=message.topic, offset=message.offset)

    async def _give_back(self, entries: Sequence[Entry[Message]], reason: str) -> None:
        """Nack, and hold back what lies behind in the same lanes until these came again."""
        until = [self._again_until_ms(entry.item) for entry in entries]
        for moment in {each for each in until if each is not None}:
            delay = (moment - self._clock.monotonic_ms()) / 1_000
            self._clock.call_later(delay, self._expire)
        # Before the nack is answered: the message may be here again before its answer is.
        self._lanes.settled(entries, until)
        reason = reason[:REASON_CHARACTERS_MAX]
        await self._settle(partial(self._consumer.nack, reason=reason), entries)

    def _again_until_ms(self, message: Message) -> int | None:
        policy = self._policy
        if policy is None or message.routing_key is None:
            return None
        attempt = int(message.attributes.get(DELIVERY_ATTEMPT_ATTRIBUTE, "1"))
        if attempt > policy.max_redelivery_count and policy.poison_policy != "Block":
            return None  # It goes elsewhere.
        delay_ms = policy.base_redelivery_delay_ms
        if policy.backoff_strategy == "Exponential":
            delay_ms = min(delay_ms << min(attempt - 1, 32), policy.max_redelivery_delay_ms)
        return self._clock.monotonic_ms() + delay_ms + AGAIN_MARGIN_MS

    def _expire(self) -> None:
        self._lanes.expire(self._clock.monotonic_ms())
        if not self._stopping.is_set():
            self._employ()
            self._room.set()

    async def _settle(
        self, settle: Callable[[Message], Awaitable[None]], entries: Sequence[Entry[Message]]
    ) -> None:
        """Ack or nack; what could not be settled is delivered again, no reason to stop."""
        for entry in entries:
            try:
                await settle(entry.item)
            except DanubeError as error:
                message = entry.item
                _log.warning(
                    "a message was not settled",
                    topic=message.topic,
                    offset=message.offset,
                    reason=str(error),
                )


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]


def _caller(subscriber: Subscriber, threads: WorkerThreads | None) -> Callable[[Any], Any]:
    if threads is None:
        return subscriber.handler

    async def call(argument: Any) -> Any:  # noqa: ANN401  # What the handler takes and gives.
        return await threads.run(partial(subscriber.handler, argument))

    return call


def _argument(subscriber: Subscriber, message: Message, values: list[Any]) -> object:
    match subscriber.wants:
        case "message":
            return message.with_codec(subscriber.codec)
        case "values":
            return values
        case "value":
            return values[0]
