"""Messages that came before the one they follow."""

from heapq import heapify, heappop, heappush

from msgspec import Struct

from pydanube.errors import DanubeError, Overloaded
from pydanube.model.ids import ProducerId
from pydanube.model.message import Message
from pydanube.model.sequences import MessageSequence
from pydanube.runtime.clock import Clock
from pydanube.topics.gathering import Published

EARLY_MAX = 1_000
"""How many messages of a topic may wait for the one before them."""
EARLY_MS = 1_000
"""How long one waits; then its client, which knows more, may send it again."""


class NumberedMessage(Struct, frozen=True):
    """A message, its number and whoever waits for its answer."""

    message: Message
    number: MessageSequence
    answer: Published


_Waiting = tuple[int, int, int, NumberedMessage]
"""Sequence it waits for, a number that makes each entry unique, deadline, message."""


class EarlyMessages:
    """Keeps messages until the one before them is taken, or refuses them after a while.

    Calls of one client may overtake each other on their way; that must not look like a loss.
    """

    def __init__(self, topic: str, clock: Clock) -> None:
        self._topic = topic
        self._clock = clock
        self._waiting: dict[ProducerId, list[_Waiting]] = {}
        self._count = 0
        self._added = 0
        self._timer_is_set = False

    def add(self, key: ProducerId, early: NumberedMessage) -> None:
        """Keep a message, or refuse it at once if too many wait."""
        if self._count >= EARLY_MAX:
            early.answer(None, self._refusal(early))
            return
        assert early.number.previous is not None
        self._count += 1
        self._added += 1
        deadline_ms = self._clock.monotonic_ms() + EARLY_MS
        entry = (early.number.previous, self._added, deadline_ms, early)
        heappush(self._waiting.setdefault(key, []), entry)
        self._set_timer()

    def take_following(self, key: ProducerId, sequence: int) -> list[NumberedMessage]:
        """Remove those that wait for `sequence` or an earlier one, and return them in order."""
        heap = self._waiting.get(key)
        if heap is None:
            return []
        taken = []
        while heap and heap[0][0] <= sequence:
            taken.append(heappop(heap)[3])
        if not heap:
            del self._waiting[key]
        self._count -= len(taken)
        return sorted(taken, key=lambda early: early.number.sequence)

    def refuse_all(self, error: DanubeError) -> None:
        """Keep nothing any more."""
        waiting, self._waiting, self._count = self._waiting, {}, 0
        for heap in waiting.values():
            for *_, early in heap:
                early.answer(None, error)

    def _set_timer(self) -> None:
        if not self._timer_is_set:
            self._timer_is_set = True
            self._clock.call_later(EARLY_MS / 1000, self._refuse_late)

    def _refuse_late(self) -> None:
        self._timer_is_set = False
        now_ms = self._clock.monotonic_ms()
        late: list[NumberedMessage] = []
        for key, heap in list(self._waiting.items()):
            late += [early for _, _, deadline_ms, early in heap if deadline_ms <= now_ms]
            kept = [entry for entry in heap if entry[2] > now_ms]
            heapify(kept)
            if kept:
                self._waiting[key] = kept
            else:
                del self._waiting[key]
        self._count -= len(late)
        if self._waiting:
            self._set_timer()
        for early in late:
            early.answer(None, self._refusal(early))

    def _refusal(self, early: NumberedMessage) -> Overloaded:
        return Overloaded(
            f"message {early.number.sequence} of producer {early.message.producer_name} "
            f"follows {early.number.previous}, which has not reached topic "
            f"{self._topic} yet; send it again"
        )
