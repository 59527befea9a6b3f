"""A consumer of a subscription, and the one stream it receives on."""

from pydanube.errors import DanubeError
from pydanube.model.ids import ConsumerId
from pydanube.runtime.clock import Timer
from pydanube.subscriptions.long_messages import LongMessages
from pydanube.subscriptions.outbox import OUTBOX_MESSAGES_MAX, Delivery, Outbox

DISPLACED_TOLD_MS = 60_000
_SUPERSEDED_PEERS_MAX = 16


class StreamEnded(Exception):
    """The stream must end: cleanly when `error` is None (another stream took over)."""

    def __init__(self, error: DanubeError | None) -> None:
        super().__init__(str(error) if error else "taken over by another stream")
        self.error = error


class ConsumerStream:
    """One call that receives messages. The latest one of a consumer is the one that gets them."""

    def __init__(self, consumer: "Consumer") -> None:
        self.consumer = consumer
        self.long_messages = LongMessages()
        self._end: StreamEnded | None = None

    async def next(self, count_max: int, bytes_max: int) -> list[Delivery]:
        """Wait for deliveries and take some; raises StreamEnded."""
        while True:
            deliveries = self.take_nowait(count_max, bytes_max)
            if deliveries:
                return deliveries
            await self.wait()

    def take_nowait(self, count_max: int, bytes_max: int) -> list[Delivery]:
        """Take deliveries if there are any; raises StreamEnded."""
        if self._end is not None:
            raise self._end
        return self.consumer.outbox.take_nowait(count_max, bytes_max)

    async def wait(self) -> None:
        """Return once there may be something to take, or `wake` was called."""
        if self._end is None:
            await self.consumer.outbox.wait()

    def wake(self) -> None:
        """Let whoever waits look again."""
        if self.consumer.stream is self:
            self.consumer.outbox.wake()

    def end(self, error: DanubeError | None) -> None:
        """Let the call end; what it has not taken stays in the outbox."""
        self._end = StreamEnded(error)
        self.consumer.outbox.wake()


class Consumer:
    """A name in a subscription. It outlives its streams, and with its id the broker's restarts."""

    def __init__(self, consumer_id: ConsumerId, name: str, filters: tuple[str, ...]) -> None:
        self.id = consumer_id
        self.name = name
        self.filters = filters
        self.outbox = Outbox()
        self.credit = OUTBOX_MESSAGES_MAX
        """How many messages it may be handed when it joins; `drained` gives it more."""
        self.stream: ConsumerStream | None = None
        self.active = False
        """It has a stream, or has just subscribed and is about to open one."""
        self.inactive_since_ms = 0
        self.said_goodbye = False
        """It closed of its own accord: nobody needs to wait for it to come back."""
        self.streamed = False
        """Whether anything may have been sent since it joined."""
        self.close_due = False
        """Its next health check shall answer CLOSE, once."""
        self.grace: Timer | None = None
        """Ends the time it has to open a stream after it subscribed."""
        self._holder: str | None = None
        self._superseded: dict[str, None] = {}
        self._displaced_told_ms: int | None = None

    def taken_by(self, peer: str) -> str | None:
        """Note the connection that has this name now; return an earlier one that is displaced.

        That is one whose stream is open: whoever has left does not miss the name.
        """
        displaced = self._holder if self.stream is not None and self._holder != peer else None
        if self._holder is not None and self._holder != peer:
            self._superseded[self._holder] = None
            if len(self._superseded) > _SUPERSEDED_PEERS_MAX:
                self._superseded.pop(next(iter(self._superseded)))
        self._superseded.pop(peer, None)
        self._holder = peer
        return displaced

    def may_tell_displaced(self, now_ms: int) -> bool:
        """Tell whether the log may say that it was displaced; two can do it to each other often."""
        last_ms = self._displaced_told_ms
        if last_ms is not None and now_ms - last_ms < DISPLACED_TOLD_MS:
            return False
        self._displaced_told_ms = now_ms
        return True

    def is_held_by(self, peer: str) -> bool:
        """Tell whether a connection is the one that has this name now."""
        return self._holder == peer

    def is_superseded(self, peer: str) -> bool:
        """Tell whether another connection has taken this name over from `peer`."""
        return peer in self._superseded

    def take_close(self) -> bool:
        """Tell whether a health check shall answer CLOSE, and never again for the same event."""
        due, self.close_due = self.close_due, False
        return due
