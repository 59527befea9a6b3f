"""Delivery in offset order, for dispatchers that need no keys."""

from abc import abstractmethod

from typing_extensions import override

from pydanube.dispatch.events import ConsumerJoined, DispatchSettings, KeysRead
from pydanube.dispatch.members import Member
from pydanube.dispatch.reliable import DELAYED_MAX, ReliableDispatcher
from pydanube.model.ids import ConsumerId, Offset
from pydanube.model.progress import Progress


class OrderedDispatcher(ReliableDispatcher):
    """Hands out ranges in offset order: retries that are due, then new messages.

    A message that waits for its own time lets later ones go ahead. While a message is exhausted and
    blocked, nothing new goes out; retries and what is in flight go on.
    """

    def __init__(self, progress: Progress, settings: DispatchSettings, seen_end: Offset) -> None:
        super().__init__(progress, settings, seen_end)
        self._members: dict[ConsumerId, Member] = {}

    @abstractmethod
    def _spread(self, start: int, end: int, attempt: int) -> int:
        """Deliver as much of a range as consumers have room for; return where that ends.

        The range may be empty.
        """

    def _credit_changed(self, member: Member) -> None:
        """Take note that a member has room, or more room, or none any more."""

    @override
    def _join(self, event: ConsumerJoined) -> None:
        member = self._members.get(event.consumer)
        if member is None:
            member = self._members[event.consumer] = Member(event.consumer)
        elif member.connected:
            self._take_back(member.id)
        member.connected = True
        member.credit = event.credit
        self._credit_changed(member)

    @override
    def _leave(self, consumer: ConsumerId) -> None:
        member = self._members.get(consumer)
        if member is not None and member.connected:
            member.connected = False
            member.credit = 0
            self._take_back(consumer)
            self._credit_changed(member)

    @override
    def _remove(self, consumer: ConsumerId) -> None:
        self._leave(consumer)
        self._members.pop(consumer, None)

    @override
    def _drain(self, consumer: ConsumerId, count: int) -> None:
        member = self._members.get(consumer)
        if member is not None and member.connected:
            member.credit += count
            self._credit_changed(member)

    @override
    def _take_keys(self, event: KeysRead) -> None:
        raise AssertionError("keys were read for a subscription that does not ask for them")

    @override
    def _fill(self) -> None:
        if self._retries.count:
            self._resend()
        if self._exhausted.blocked_count:
            return
        if self._delayed.count and not self._send_due():
            return
        undelivered = self._undelivered
        while undelivered.position < self._end:
            room = self._room()
            if room <= 0:
                return
            start, end, attempts = undelivered.first(self._end)
            if end - start > room:
                end = start + room
            if self._settings.rate_per_second is not None:
                end = min(end, start + self._allowance())
            stop = self._spread(start, end, attempts + 1)
            if stop == start:
                return
            undelivered.deliver(stop)

    def _send_due(self) -> bool:
        """Deliver what has waited for its own time; tell whether new messages may follow."""
        delayed = self._delayed
        while (first := delayed.first_ready()) is not None:
            start, end, attempts = first
            end = min(end, start + max(self._room(), 0))
            if self._settings.rate_per_second is not None:
                end = min(end, start + self._allowance())
            # Out of one place before it enters the other.
            delayed.take_ready(start, end)
            stop = self._spread(start, end, attempts + 1)
            if stop < end:
                delayed.make_ready(stop, end, attempts)
            if stop < end or stop == start:
                return False
        return delayed.count < DELAYED_MAX

    def _resend(self) -> None:
        retries = self._retries
        while (first := retries.first_ready()) is not None:
            start, end, attempts = first
            if self._settings.rate_per_second is not None:
                end = min(end, start + self._allowance())
            # Out of one place before it enters the other.
            retries.take_ready(start, end)
            stop = self._spread(start, end, attempts + 1)
            if stop < end:
                retries.make_ready(stop, end, attempts)
            if stop < end or stop == start:
                return
