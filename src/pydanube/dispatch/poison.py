"""What becomes of messages that have failed too often."""

from collections.abc import Mapping

from msgspec import Struct

from pydanube.dispatch.range_map import Known, RangeMap
from pydanube.dispatch.redelivery import NEVER

DEAD_LETTER_RETRY_MS_MIN = 100
"""A dead-letter topic that fails at once must not be asked in a hot loop."""


class Failure(Struct, frozen=True):
    """How often messages have been delivered, and why the last delivery failed."""

    attempts: int
    reason: str | None


class Exhausted:
    """Messages that get no other delivery and are not settled yet.

    They are blocked (an operator must decide), or a dead letter that was asked for, or a dead
    letter that failed and is asked for again later. Times to ask again are given in order.
    """

    def __init__(self) -> None:
        self._blocked: RangeMap[Failure] = RangeMap()
        self._asked: dict[int, Failure] = {}
        self._failed: dict[int, tuple[int, Failure]] = {}
        self.blocked_count = 0
        """How many are blocked."""
        self.leaving_count = 0
        """How many are on their way to the dead-letter topic."""

    def block(self, start: int, end: int, failure: Failure) -> None:
        """Keep messages until an operator decides."""
        self._blocked.insert(start, end, failure)
        self._recount()

    def first_blocked(self) -> tuple[int, Failure] | None:
        """Return the lowest offset that is blocked."""
        first = self._blocked.first()
        return None if first is None else (first[0], first[2])

    def ask(self, offset: int, failure: Failure) -> None:
        """Take note that a dead letter was asked for."""
        self._asked[offset] = failure
        self._recount()

    def answer(self, offset: int) -> Failure | None:
        """Take a dead letter out that was asked for; None if it was not, or is settled."""
        failure = self._asked.pop(offset, None)
        self._recount()
        return failure

    def ask_again_at(self, offset: int, failure: Failure, time_ms: int) -> None:
        """Take note that a dead letter failed."""
        self._failed[offset] = (time_ms, failure)
        self._recount()

    def take_due(self, now_ms: int) -> list[Known[Failure]]:
        """Remove the dead letters that shall be asked for again now."""
        due: list[Known[Failure]] = []
        for offset, (time_ms, failure) in self._failed.items():
            if time_ms > now_ms:
                break
            due.append((offset, offset + 1, failure))
        for offset, _, _ in due:
            del self._failed[offset]
        self._recount()
        return due

    def next_due_ms(self) -> int:
        """Return when `take_due` will find something, or NEVER."""
        return next(iter(self._failed.values()))[0] if self._failed else NEVER

    def take_undecided(self) -> list[Known[Failure]]:
        """Remove all but those with an answer to come, to be judged by a new policy."""
        taken = self._blocked.take_all()
        taken += [(at, at + 1, failure) for at, (_, failure) in self._failed.items()]
        self._failed.clear()
        self._recount()
        return sorted(taken, key=lambda known: known[0])

    def take(self, start: int, end: int) -> list[Known[int]]:
        """Remove what lies in [start, end) and return it with its attempts."""
        taken = [(at, to, failure.attempts) for at, to, failure in self._blocked.take(start, end)]
        for offset in _keys_within(self._asked, start, end):
            taken.append((offset, offset + 1, self._asked.pop(offset).attempts))
        for offset in _keys_within(self._failed, start, end):
            taken.append((offset, offset + 1, self._failed.pop(offset)[1].attempts))
        self._recount()
        return taken

    def _recount(self) -> None:
        self.blocked_count = self._blocked.count
        self.leaving_count = len(self._asked) + len(self._failed)


def _keys_within(held: Mapping[int, object], start: int, end: int) -> list[int]:
    if end - start < len(held):
        return [offset for offset in range(start, end) if offset in held]
    return [offset for offset in held if start <= offset < end]
