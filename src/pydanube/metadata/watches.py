"""Telling watches what changed: in order, without gaps, and in bounded memory."""

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct
from typing_extensions import override

from pydanube.errors import Conflict, DanubeError, InvalidRequest
from pydanube.metadata.commands import MIB, check_prefix
from pydanube.metadata.store import Change


class WatchLimits(Struct, frozen=True, kw_only=True):
    """How much is kept for watches: by the history, and by each watch that is slow to read."""

    history_changes_max: int = 10_000
    history_bytes_max: int = 64 * MIB
    queue_changes_max: int = 10_000
    queue_bytes_max: int = 64 * MIB


class Watches:
    """Hands every change to the watches it concerns.

    All changes of one revision are handed over together. The last revisions are kept, so that a
    watch may begin at a revision that has just passed, such as that of a list, and miss nothing.
    """

    def __init__(self, revision: int, limits: WatchLimits) -> None:
        self._limits = limits
        self._history = _Revisions()
        self._compacted_revision = revision
        # Weak, so that an iterator somebody has dropped costs nothing.
        self._watches: dict[int, weakref.ref[Watch]] = {}
        self._last_number = 0
        self._ended = False
        self._failure: DanubeError | None = None

    def publish(self, changes: Sequence[Change]) -> None:
        """Tell the changes of one revision, which follows all told before."""
        if not changes:
            return
        self._history.append(changes)
        self._trim_history()
        for watch in self._living():
            watch.offer(changes)

    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Change]:
        """Return the changes below the prefix with a revision above that one.

        Conflict, here or while iterating, if some of them are no longer held.
        """
        check_prefix(prefix)
        if after_revision < 0:
            raise InvalidRequest(f"a watch begins after revision 0 or more, not {after_revision}")
        if after_revision < self._compacted_revision:
            raise Conflict(
                f"changes up to revision {self._compacted_revision} are no longer held, and a "
                f"watch was asked for after {after_revision}: list again and watch from there"
            )
        watch = Watch(prefix, after_revision, self._limits)
        watch.begin(self._history.after(after_revision))
        if self._ended:
            watch.end(self._failure)
        self._last_number += 1
        number = self._last_number
        self._watches[number] = weakref.ref(watch, lambda _: self._watches.pop(number, None))
        return watch

    def compact(self, revision: int) -> None:
        """Forget the history: the state was replaced by that of another place in time."""
        self._history = _Revisions()
        self._compacted_revision = revision
        for watch in self._living():
            watch.fall_behind("the state was replaced by a snapshot")

    def end(self, failure: DanubeError | None) -> None:
        """Let every watch end after what it still holds: with the failure, or quietly."""
        if self._ended:
            return
        self._ended = True
        self._failure = failure
        for watch in self._living():
            watch.end(failure)

    def _living(self) -> list["Watch"]:
        watches = [reference() for reference in list(self._watches.values())]
        return [watch for watch in watches if watch is not None]

    def _trim_history(self) -> None:
        limits = self._limits
        # The newest revision stays, however large: whoever keeps up must not be told to list again.
        while len(self._history.groups) > 1 and self._history.exceeds(
            limits.history_changes_max, limits.history_bytes_max
        ):
            self._compacted_revision = self._history.popleft()[0].revision


class Watch(AsyncIterator[Change]):
    """One watch. A reader that is too slow ends with Conflict: it lists again and watches anew.

    What was read before is complete up to some revision: changes are dropped all or not at all.
    """

    def __init__(self, prefix: str, after_revision: int, limits: WatchLimits) -> None:
        self._prefix = prefix
        self._after_revision = after_revision
        self._limits = limits
        self._queue = _Revisions()
        self._current: deque[Change] = deque()
        self._ended = False
        self._failure: DanubeError | None = None
        self._wakeup = asyncio.Event()

    @override
    def __aiter__(self) -> "Watch":
        return self

    @override
    async def __anext__(self) -> Change:
        while not self._current:
            if self._queue.groups:
                self._current.extend(self._queue.popleft())
            elif self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            elif self._ended:
                raise StopAsyncIteration
            else:
                self._wakeup.clear()
                await self._wakeup.wait()
        return self._current.popleft()

    def begin(self, groups: Sequence[Sequence[Change]]) -> None:
        """Start with what the history holds; it is bounded, so all of it is taken."""
        for changes in groups:
            self._take(self._matching(changes))

    def offer(self, changes: Sequence[Change]) -> None:
        """Queue what concerns this watch, or give up on it if it does not keep up."""
        if self._ended or changes[0].revision <= self._after_revision:
            return
        matching = self._matching(changes)
        self._take(matching)
        # A single revision is always taken, as whoever keeps up must not be told to list again.
        if len(self._queue.groups) > 1 and self._queue.exceeds(
            self._limits.queue_changes_max, self._limits.queue_bytes_max
        ):
            self.fall_behind(f"{self._queue.change_count} changes were waiting to be read")

    def fall_behind(self, reason: str) -> None:
        """Drop what is queued and end with Conflict."""
        self._queue = _Revisions()
        self.end(
            Conflict(
                f"the watch on {self._prefix} cannot continue ({reason}): "
                "list again and watch from there"
            )
        )

    def end(self, failure: DanubeError | None) -> None:
        """End after what is queued: with the failure, or quietly."""
        if not self._ended:
            self._ended = True
            self._failure = failure
            self._wakeup.set()

    def _matching(self, changes: Sequence[Change]) -> list[Change]:
        return [change for change in changes if change.key.startswith(self._prefix)]

    def _take(self, changes: list[Change]) -> None:
        if changes:
            self._queue.append(changes)
            self._wakeup.set()


class _Revisions:
    """Changes in order, grouped by revision, and how many and how large they are."""

    def __init__(self) -> None:
        self.groups: deque[Sequence[Change]] = deque()
        self.change_count = 0
        self.byte_count = 0

    def append(self, changes: Sequence[Change]) -> None:
        self.groups.append(changes)
        self.change_count += len(changes)
        self.byte_count += _size(changes)

    def popleft(self) -> Sequence[Change]:
        changes = self.groups.popleft()
        self.change_count -= len(changes)
        self.byte_count -= _size(changes)
        return changes

    def exceeds(self, changes_max: int, bytes_max: int) -> bool:
        return self.change_count > changes_max or self.byte_count > bytes_max

    def after(self, revision: int) -> list[Sequence[Change]]:
        return [changes for changes in self.groups if changes[0].revision > revision]


def _size(changes: Sequence[Change]) -> int:
    return sum(len(change.key) + len(change.value or b"") for change in changes)
