"""Dispatchers of non-reliable topics: a message goes out at once, or never."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import assert_never

from typing_extensions import override

from pydanube.dispatch.events import (
    Acked,
    Action,
    Available,
    BlockedMessage,
    ClockMoved,
    Configured,
    ConsumerJoined,
    ConsumerLeft,
    ConsumerRemoved,
    DeadLetterStored,
    Deliver,
    Discard,
    Drained,
    Event,
    Expired,
    ExpiredBelow,
    KeysRead,
    Nacked,
    Postponed,
    SeekTo,
    Skipped,
    TimePassed,
    Unsent,
)
from pydanube.dispatch.globs import Glob
from pydanube.dispatch.key_owners import KeyMember, KeyOwners
from pydanube.dispatch.key_shared import ABSENCE_MS_MAX
from pydanube.dispatch.members import Member
from pydanube.model.ids import ConsumerId, Offset
from pydanube.model.progress import Progress


class BestEffortDispatcher(ABC):
    """Hands every message to a consumer that has room for it now, or discards it.

    Nothing waits: no window, no attempts, no rate. Acks and nacks mean nothing here.
    """

    def __init__(self, progress: Progress) -> None:
        self._next: int = progress.cursor
        self._now_ms = 0
        self._members: dict[ConsumerId, KeyMember] = {}
        self._actions: list[Action] = []

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take one event in; `now_ms` never goes backwards."""
        assert now_ms >= self._now_ms, "time went backwards"
        self._now_ms = now_ms
        actions = self._actions = []
        match event:
            case Available():
                self._offer(event.end, ())
            case KeysRead():
                assert event.start >= self._next, "messages were offered twice"
                self._next = event.start
                self._offer(event.start + len(event.keys), event.keys)
            case Drained():
                member = self._members.get(event.consumer)
                if member is not None and member.connected:
                    member.credit += event.count
            case ConsumerJoined():
                self._join(event)
            case ConsumerLeft():
                self._leave(event.consumer)
            case ConsumerRemoved():
                self._remove(event.consumer)
            case Skipped():
                self._next = max(self._next, event.end)
            case Acked() | Nacked() | DeadLetterStored() | Configured() | TimePassed():
                pass
            case Unsent():
                pass  # An outbox keeps what it holds.
            case Postponed() | Expired() | ExpiredBelow() | ClockMoved() | SeekTo():
                pass  # Nothing is stored that could wait, grow old or be gone back to.
            case _:
                assert_never(event)
        return actions

    @property
    def cursor(self) -> Offset:
        """The first offset that has not been offered."""
        return Offset(self._next)

    @property
    def wake_at_ms(self) -> int | None:
        """Return None: nothing waits for time."""
        return None

    def holder(self, offset: Offset) -> ConsumerId | None:
        """Return nobody: what was handed over is done."""
        return None

    @property
    def in_flight_count(self) -> int:
        """Return 0: a message that was handed over is done."""
        return 0

    @property
    def waiting_count(self) -> int:
        """Return 0: nothing is delivered twice."""
        return 0

    @property
    def blocked_count(self) -> int:
        """Return 0: nothing fails."""
        return 0

    @property
    def first_blocked(self) -> BlockedMessage | None:
        """Return None: nothing fails."""
        return None

    @property
    def delayed_count(self) -> int:
        """Return 0: nothing waits for its time."""
        return 0

    @abstractmethod
    def _spread(self, start: int, end: int, keys: Sequence[str]) -> None:
        """Deliver or discard all of a range."""

    def _join(self, event: ConsumerJoined) -> KeyMember:
        member = self._members.get(event.consumer)
        if member is None:
            member = KeyMember(event.consumer, filters=tuple(map(Glob, event.filters)))
            self._members[member.id] = member
        member.connected = True
        member.credit = event.credit
        return member

    def _leave(self, consumer: ConsumerId) -> None:
        member = self._members.get(consumer)
        if member is not None and member.connected:
            member.connected = False
            member.credit = 0
            member.left_at_ms = self._now_ms

    def _remove(self, consumer: ConsumerId) -> None:
        self._leave(consumer)
        self._members.pop(consumer, None)

    def _offer(self, end: int, keys: Sequence[str]) -> None:
        start, self._next = self._next, max(self._next, end)
        if start < end:
            self._spread(start, end, keys)

    def _deliver(self, member: Member, start: int, end: int) -> None:
        assert 0 < end - start <= member.credit, "a consumer got more than it has room for"
        member.credit -= end - start
        self._actions.append(Deliver(member.id, Offset(start), Offset(end), 1))

    def _discard(self, start: int, end: int) -> None:
        if start < end:
            self._actions.append(Discard(Offset(start), Offset(end)))


class BestEffortExclusiveDispatcher(BestEffortDispatcher):
    """Everything goes to the consumer that joined first; while it is away, to nobody."""

    @override
    def _spread(self, start: int, end: int, keys: Sequence[str]) -> None:
        for active in self._members.values():
            stop = min(end, start + active.credit)
            if start < stop:
                self._deliver(active, start, stop)
            start = stop
            break
        self._discard(start, end)


class BestEffortFailoverDispatcher(BestEffortExclusiveDispatcher):
    """Everything goes to the connected consumer that has been here longest."""

    @override
    def _leave(self, consumer: ConsumerId) -> None:
        self._members.pop(consumer, None)


class BestEffortSharedDispatcher(BestEffortDispatcher):
    """Consumers get messages in turn, in the order of joining; one without room is passed over.

    Each gets as many as if they were dealt out one by one, but what is offered at the same moment
    goes in contiguous ranges.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._turn = 0

    @override
    def _spread(self, start: int, end: int, keys: Sequence[str]) -> None:
        members = list(self._members.values())
        while start < end and members:
            places = [(self._turn + step) % len(members) for step in range(len(members))]
            takers = [place for place in places if members[place].credit]
            if not takers:
                break
            credit = min(members[place].credit for place in takers)
            share = min(max(1, (end - start) // len(takers)), credit)
            for place in takers[: end - start]:
                self._deliver(members[place], start, start + share)
                start += share
                self._turn = place + 1
        self._discard(start, end)


class BestEffortKeySharedDispatcher(BestEffortDispatcher):
    """Each key goes to its owner, if that one is there and has room."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._owners = KeyOwners()
        self._away: dict[ConsumerId, KeyMember] = {}
        """Those who left and have not lost their keys yet, longest absence first."""

    @override
    def _join(self, event: ConsumerJoined) -> KeyMember:
        member = super()._join(event)
        self._away.pop(member.id, None)
        self._owners.enter(member)
        return member

    @override
    def _leave(self, consumer: ConsumerId) -> None:
        super()._leave(consumer)
        member = self._members.get(consumer)
        if member is not None and member.present:
            self._away.setdefault(consumer, member)

    @override
    def _remove(self, consumer: ConsumerId) -> None:
        member = self._members.get(consumer)
        super()._remove(consumer)
        if member is not None:
            self._away.pop(consumer, None)
            self._owners.exit(member)

    @override
    def _spread(self, start: int, end: int, keys: Sequence[str]) -> None:
        assert len(keys) == end - start, "messages were offered without their keys"
        self._disown_absent()
        run_target, run_start = self._take_credit(keys[0]), start
        for offset in range(start + 1, end):
            target = self._take_credit(keys[offset - start])
            if target is not run_target:
                self._hand_over(run_target, run_start, offset)
                run_target, run_start = target, offset
        self._hand_over(run_target, run_start, end)

    def _take_credit(self, key: str) -> KeyMember | None:
        """Return who gets the next message of a key, and let it have room for one less."""
        ownership = self._owners.use(key)
        owner = self._owners.owner(ownership)
        self._owners.release(ownership)
        if owner is None or not owner.credit:
            return None
        owner.credit -= 1
        return owner

    def _hand_over(self, target: KeyMember | None, start: int, end: int) -> None:
        if target is None:
            self._discard(start, end)
        else:
            self._actions.append(Deliver(target.id, Offset(start), Offset(end), 1))

    def _disown_absent(self) -> None:
        while self._away:
            member = next(iter(self._away.values()))
            if member.left_at_ms + ABSENCE_MS_MAX > self._now_ms:
                return
            del self._away[member.id]
            self._owners.exit(member)
