"""A topic that is deleted and created again and again: no life of it may know of another.

Its consumers keep what they were given in earlier lives, and ack and nack it in later ones.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.support.checkers import Violation
from tests.support.history import History, Life
from tests.support.recorded_channel import value_of
from tests.support.wire_calls import (
    ack,
    create_producer,
    create_topic,
    delete_topic,
    nack,
    send,
    subscribe,
    unsubscribe,
)
from tests.support.workloads import Ground

TOPIC = "/default/churned"
SUBSCRIPTION = "reader"
# Longer than anything is held up on its way: what was asked for before has happened or never will.
ECHO_SECONDS = 20.0
READ_SECONDS_MAX = 120.0
HESITATION_SECONDS = 2.0
STALE_ATTEMPTS = 3


class Churner:
    """Lives through one life of the topic after another, and checks each by itself.

    It alone creates and deletes, and does the next step only when nothing of the last one can
    still be under way, so that it knows in which life it is.
    """

    def __init__(
        self,
        ground: Ground,
        admin_ground: Ground,
        history: History,
        *,
        knows_at_once: bool = True,
    ) -> None:
        self._history = history
        self._knows_at_once = knows_at_once
        """Whether whoever is asked knows what there is; brokers of a cluster may be told late."""
        self._given: list[api.StreamMessage] = []
        """What this life has delivered so far."""
        self._held: list[api.StreamMessage] = []
        """What earlier lives have delivered, acked by then or not."""
        self._ground = ground
        self._channel = ground.open_channel()
        self._admin = admin_ground.open_channel()
        self._uncertain = False
        self._is_enough = False
        """Something is lost; whatever else there is to see would take as long."""
        self.violations: list[Violation] = []

    async def run(self, lives: int) -> None:
        try:
            for life in range(lives):
                await self._one_life(life)
                if self._is_enough:
                    return
        finally:
            await self._channel.close()
            await self._admin.close()

    async def _one_life(self, life: int) -> None:
        await self._create()
        consumer = await self._subscribe("latest")
        acknowledged = await self._publish(life)
        await self._consume(life, consumer, acknowledged)
        if self._ground.chance(2) and not self._is_enough:
            # A subscription knows as little of its earlier lives as a topic: all comes again.
            await self._unsubscribe()
            await self._consume(life, await self._subscribe("earliest"), acknowledged)
        await self._delete()

    async def _consume(self, life: int, consumer: int, acknowledged: dict[int, str]) -> None:
        settled = await self._hesitate(consumer, acknowledged)
        owed = {at: value for at, value in acknowledged.items() if at not in settled}
        read_from = self._history.now()
        await self._read(life, consumer, owed)
        name = f"life {life}, {len(self._held)} held from before"
        self._history.lives.append(
            Life(TOPIC, SUBSCRIPTION, name, owed, read_from, self._history.now())
        )
        await self._wait_for_echoes()
        self._held += self._given
        self._given = []

    async def _hesitate(self, consumer: int, acknowledged: dict[int, str]) -> set[int]:
        """Receive for a while and ack little of it; meanwhile others settle what is long over.

        Returns the offsets that were acked, or may have been.
        """
        settled: set[int] = set()
        request = api.ReceiveRequest(request_id=1, consumer_id=consumer).SerializeToString()
        stream = self._channel.stream(services.RECEIVE_MESSAGES.path, request)
        assert isinstance(stream, AsyncGenerator)
        async with aclosing(stream):
            with suppress(CallRefused, TimeoutError, StopAsyncIteration):
                async with asyncio.timeout(HESITATION_SECONDS):
                    for _ in acknowledged:
                        message = api.StreamMessage.FromString(await anext(stream))
                        self._given.append(message)
                        if self._ground.chance(3):
                            settled.add(message.msg_id.topic_offset)
                            await ack(self._channel, message, SUBSCRIPTION)
            await self._settle_what_is_over()
        return settled

    async def _settle_what_is_over(self) -> None:
        """Ack or nack what earlier lives delivered, over this connection or a new one."""
        other = self._ground.open_channel()
        try:
            for message in self._held:
                channel = self._channel if self._ground.chance(2) else other
                settle = nack if self._ground.chance(4) else ack
                for _ in range(STALE_ATTEMPTS):
                    try:
                        await settle(channel, message, SUBSCRIPTION)
                        break
                    except CallRefused:
                        await self._ground.pause(0.1, 1.0)
        finally:
            await other.close()

    async def _subscribe(self, start: str) -> int:
        return await self._certainly(
            lambda: subscribe(self._channel, TOPIC, SUBSCRIPTION, "churner", "Shared", start=start)
        )

    async def _unsubscribe(self) -> None:
        while True:
            try:
                await unsubscribe(self._admin, TOPIC, SUBSCRIPTION)
            except CallRefused as refused:
                if refused.code is StatusCode.NOT_FOUND and (
                    self._knows_at_once or self._uncertain
                ):
                    break  # An earlier call has done it.
                if refused.code is not StatusCode.FAILED_PRECONDITION:
                    self._uncertain = True
                # Or its consumer has not been missed yet.
                await self._ground.pause(0.1, 1.0)
            else:
                break
        await self._wait_for_echoes()

    async def _create(self) -> None:
        while True:
            try:
                await create_topic(self._admin, TOPIC, "Reliable")
            except CallRefused as refused:
                if refused.code is StatusCode.ALREADY_EXISTS:
                    break
                self._uncertain = True
                await self._ground.pause(0.1, 1.0)
            else:
                break
        await self._wait_for_echoes()

    async def _publish(self, life: int) -> dict[int, str]:
        producer = await self._certainly(
            lambda: create_producer(self._channel, TOPIC, "churner", "Reliable")
        )
        acknowledged: dict[int, str] = {}
        count = 1 + self._ground.randomness.below(6)
        for number in range(count):
            value = f"churned.{life}.{number}"
            try:
                offset = await send(self._channel, TOPIC, producer, "churner", value)
            except CallRefused:
                self._uncertain = True
                await self._ground.pause(0.1, 1.0)
            else:
                if offset in acknowledged or offset > number:
                    self._complain(f"{value} got offset {offset} as number {number} of its life")
                acknowledged[offset] = value
        return acknowledged

    async def _read(self, life: int, consumer: int, acknowledged: dict[int, str]) -> None:
        seen: dict[int, str] = {}
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                while not acknowledged.keys() <= seen.keys():
                    with suppress(CallRefused, TimeoutError):
                        await self._read_some(consumer, acknowledged, seen)
                    await self._ground.pause(0.1, 1.0)
        except TimeoutError:
            self._is_enough = True  # The law says what is missing.
        for offset, value in seen.items():
            if not value.startswith(f"churned.{life}.") or acknowledged.get(offset, value) != value:
                self._complain(f"offset {offset} of life {life} holds {value}")

    async def _read_some(
        self, consumer: int, acknowledged: dict[int, str], seen: dict[int, str]
    ) -> None:
        request = api.ReceiveRequest(request_id=1, consumer_id=consumer).SerializeToString()
        stream = self._channel.stream(services.RECEIVE_MESSAGES.path, request)
        assert isinstance(stream, AsyncGenerator)
        async with aclosing(stream):
            while not acknowledged.keys() <= seen.keys():
                async with asyncio.timeout(5.0):
                    message = api.StreamMessage.FromString(await anext(stream))
                self._given.append(message)
                seen[message.msg_id.topic_offset] = value_of(message.payload)
                await ack(self._channel, message, SUBSCRIPTION)

    async def _delete(self) -> None:
        async with asyncio.TaskGroup() as meanwhile:
            meanwhile.create_task(self._come_late())
            await self._delete_at_last()
        await self._wait_for_echoes()

    async def _come_late(self) -> None:
        """Subscribe under another name while the topic is being deleted, or just after."""
        await self._ground.pause(0.0, 0.02)
        try:
            await subscribe(self._channel, TOPIC, SUBSCRIPTION, "late", "Shared", start="latest")
        except CallRefused:
            self._uncertain = True

    async def _delete_at_last(self) -> None:
        uncertain = False
        while True:
            try:
                await delete_topic(self._admin, TOPIC)
            except CallRefused as refused:
                if refused.code is StatusCode.NOT_FOUND:
                    if self._knows_at_once and not uncertain:
                        self._complain("the topic was gone before it was deleted")
                    if self._knows_at_once or uncertain:
                        break
                uncertain = self._uncertain = True
                await self._wait_for_echoes()
            else:
                break

    async def _certainly(self, call):
        while True:
            try:
                return await call()
            except CallRefused as refused:
                if refused.code is StatusCode.NOT_FOUND and self._knows_at_once:
                    self._complain(f"the topic was lost: {refused}")
                self._uncertain = True
                await self._ground.pause(0.1, 1.0)

    async def _wait_for_echoes(self) -> None:
        if self._uncertain:
            await asyncio.sleep(ECHO_SECONDS)
        self._uncertain = False

    def _complain(self, text: str) -> None:
        self.violations.append(Violation("churned topic", text))
