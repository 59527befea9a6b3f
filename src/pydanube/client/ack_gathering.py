"""Acks that nobody waits for: gathered, sent together, and told about when they fail."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from pydanube.errors import DanubeError, Unavailable
from pydanube.runtime.clock import Clock, Timer
from pydanube.runtime.tasks import TaskScope, call_soon

UNCONFIRMED_MAX = 20_000
"""How many messages may be acked and not confirmed; beyond, an ack waits."""
LINGER_SECONDS = 0.005
"""How long an ack waits for others, where no delivery waits for it."""
SENT_AT_ONCE = 1_000
"""So many acks wait for no more."""

Item = TypeVar("Item")


class AckGatherer(Generic[Item]):
    """Gathers acks of one topic or partition; `send` ends by itself, with an error if need be.

    An ack that could not be sent is a repeated delivery, never a lost message. Its error is raised
    by the next call here, once.
    """

    def __init__(
        self,
        topic: str,
        send: Callable[[Sequence[Item]], Awaitable[None]],
        clock: Clock,
        linger_seconds: float,
    ) -> None:
        self._topic = topic
        self._send = send
        self._clock = clock
        self._linger_seconds = linger_seconds
        self._gathered: list[Item] = []
        self._messages = 0
        self._unconfirmed = 0
        self._timer: Timer | None = None
        self._is_due = False
        """Whether what is gathered goes out at the end of this turn of the event loop."""
        self._failure: Exception | None = None
        self._sending: dict[asyncio.Future[Exception | None], None] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._tasks = TaskScope(self._broke)

    def check(self) -> None:
        """Raise why an earlier ack failed, if nobody has been told."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def add(self, items: Sequence[Item], messages: int, *, durable: bool = False) -> None:
        """Take acks in; returns at once while there is room, unless they shall be durable."""
        if self._failure is not None:
            self.check()
        if self._unconfirmed >= UNCONFIRMED_MAX:
            await self._room()
        self._gathered += items
        self._messages += messages
        self._unconfirmed += messages
        if durable:
            sent = self._flush()
            assert sent is not None, "something was gathered"
            self._raise(await asyncio.shield(sent))
        elif self._messages >= SENT_AT_ONCE:
            self._flush()
        elif not self._is_due:
            self._flush_later()

    async def flush(self) -> None:
        """Send what is gathered, and wait until all that was sent is confirmed."""
        self._flush()
        sending = list(self._sending)
        if sending:
            await asyncio.wait(sending)
        for sent in sending:
            self._raise(sent.result())
        self.check()

    def _raise(self, failure: Exception | None) -> None:
        """Raise to everybody who waits for these acks, and then to nobody else."""
        if failure is not None:
            self._failure = None if self._failure is failure else self._failure
            raise failure

    async def close(self) -> None:
        """Send nothing more."""
        self._end_turn()
        self._gathered = []
        await self._tasks.close()
        for sent in list(self._sending):
            self._confirmed(0, sent, self._cut_off())

    def _flush_later(self) -> None:
        self._is_due = True
        if self._linger_seconds:
            self._timer = self._clock.call_later(self._linger_seconds, self._flush_due)
        else:
            call_soon(self._flush_due)

    def _flush_due(self) -> None:
        self._flush()

    def _end_turn(self) -> None:
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> "asyncio.Future[Exception | None] | None":
        self._end_turn()
        if not self._gathered:
            return None
        items, messages = self._gathered, self._messages
        self._gathered, self._messages = [], 0
        sent: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._sending[sent] = None
        self._tasks.start(self._carry(items, messages, sent), f"ack on {self._topic}")
        return sent

    async def _carry(
        self, items: Sequence[Item], messages: int, sent: "asyncio.Future[Exception | None]"
    ) -> None:
        failure: Exception | None = self._cut_off()
        try:
            await self._send(items)
            failure = None
        except DanubeError as error:
            failure = error
        finally:
            self._confirmed(messages, sent, failure)

    def _cut_off(self) -> DanubeError:
        return Unavailable(
            f"acks on {self._topic} were cut off before they were confirmed; their messages may be "
            "delivered again"
        )

    def _confirmed(
        self, messages: int, sent: "asyncio.Future[Exception | None]", failure: Exception | None
    ) -> None:
        self._failure = failure or self._failure
        self._unconfirmed -= messages
        del self._sending[sent]
        sent.set_result(failure)
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)

    async def _room(self) -> None:
        self._flush()
        while self._unconfirmed >= UNCONFIRMED_MAX:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self.check()

    def _broke(self, name: str, failure: BaseException) -> None:
        if isinstance(failure, Exception):
            self._failure = failure
