"""Makes a subscription's progress durable: what one tick settles is one record in the journal."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from pydanube.errors import DanubeError, Overloaded
from pydanube.model.ids import Offset, SubscriptionId
from pydanube.model.progress import Progress, ProgressChange
from pydanube.model.ranges import RangeSet
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import call_soon
from pydanube.storage.journal.progress import FoldedProgress
from pydanube.storage.topic_log import Guard, ask_guard

Done = Callable[[DanubeError | None], None]

_RETRY_SECONDS = 0.01


class ProgressLog(Protocol):
    """What the storage offers a subscription."""

    def append_progress(
        self, subscription: SubscriptionId, change: ProgressChange, done: Done
    ) -> None:
        """Journal a change; `done` follows, with Overloaded at once if it was not taken."""

    def replace_progress(
        self, subscription: SubscriptionId, progress: Progress, done: Done
    ) -> None:
        """Journal a whole progress in place of what was before; `done` as above."""


class _Record(Struct, frozen=True):
    """What one tick brought, and who waits for it."""

    era: int
    position: Offset | None
    """Where the subscription was moved to before the change."""
    change: ProgressChange
    waiting: list[Done]

    def whole(self) -> Progress:
        """Return the progress since the subscription was moved."""
        assert self.position is not None
        folded = FoldedProgress(Progress(self.position))
        folded.apply(self.change)
        return folded.whole()


class Cursor:
    """Gathers what is settled and counted, and journals it once per tick.

    `when_durable` answers after everything recorded before the call is durable, so that an ack
    answered with OK is never forgotten. Once a record was lost, or the topic with it, it answers
    with that for ever.
    """

    def __init__(
        self,
        subscription: SubscriptionId,
        log: ProgressLog,
        clock: Clock,
        guard: Guard | None = None,
    ) -> None:
        self._subscription = subscription
        self._log = log
        self._clock = clock
        self._guard = guard
        self._settled = RangeSet()
        self._attempts: list[tuple[int, int, int]] = []
        self._position: Offset | None = None
        self._era = 0
        self._waiting: list[Done] = []
        self._scheduled = False
        self._unsynced = 0
        self._after_sync: list[Done] = []
        self._over: list[Done] = []
        """Whoever has nothing to wait for but the guard."""
        self._failure: DanubeError | None = None
        self._closed = False

    def settle(self, start: int, end: int) -> None:
        """Record that these messages are done."""
        self._settled.add(start, end)
        self._schedule()

    def count(self, start: int, end: int, attempts: int) -> None:
        """Record how often these messages have been delivered in vain."""
        self._attempts.append((start, end, attempts))
        self._schedule()

    def seek(self, position: Offset) -> None:
        """Record that the subscription goes on from there, whatever was recorded before."""
        self._era += 1
        self._position = position
        self._settled = RangeSet()
        self._attempts = []
        self._schedule()

    def when_durable(self, done: Done) -> None:
        """Answer once all that was recorded so far is durable."""
        if self._scheduled:
            self._waiting.append(done)
        elif self._unsynced:
            self._after_sync.append(done)
        else:
            self._over.append(done)
            self.answer()

    def answer(self) -> None:
        """Answer whom nothing keeps waiting; to be called when the guard has decided."""
        if not self._over:
            return
        guard = self._guard if self._failure is None else None
        verdict = ask_guard(guard, is_let_go=self._closed)
        if verdict == "wait":
            return
        self._failure = self._failure or verdict
        over, self._over = self._over, []
        for done in over:
            done(self._failure)

    def close(self) -> None:
        """Keep nobody waiting for the guard from now on."""
        self._closed = True
        self.answer()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            call_soon(self._flush)

    def _flush(self) -> None:
        change = ProgressChange(tuple(self._settled), tuple(self._attempts))
        record = _Record(self._era, self._position, change, self._waiting)
        self._scheduled = False
        self._position = None
        self._settled = RangeSet()
        self._attempts = []
        self._waiting = []
        self._unsynced += 1
        if record.position is None:
            self._log.append_progress(
                self._subscription, change, lambda error: self._answered(record, error)
            )
        else:
            self._log.replace_progress(
                self._subscription, record.whole(), lambda error: self._answered(record, error)
            )

    def _answered(self, record: _Record, error: DanubeError | None) -> None:
        self._unsynced -= 1
        if isinstance(error, Overloaded):
            self._offer_again(record)
            return
        self._failure = self._failure or error
        self._over += record.waiting
        if not self._unsynced:
            self._over += self._after_sync
            self._after_sync = []
        self.answer()

    def _offer_again(self, record: _Record) -> None:
        """Gather what was not taken behind nothing and before all that came since."""
        if record.era == self._era:
            self._position = record.position
            for start, end in record.change.settled:
                self._settled.add(start, end)
            self._attempts = [*record.change.attempts, *self._attempts]
        self._waiting = [*record.waiting, *self._waiting]
        if not self._scheduled:
            self._scheduled = True
            self._clock.call_later(_RETRY_SECONDS, self._flush)
