"""Messages of one key go to one consumer, one at a time."""

from collections import deque
from heapq import heappop, heappush

from msgspec import Struct
from typing_extensions import override

from pydanube.dispatch.events import ConsumerJoined, DispatchSettings, KeysRead, ReadKeys
from pydanube.dispatch.globs import Glob
from pydanube.dispatch.key_owners import KeyMember, KeyOwners, Ownership
from pydanube.dispatch.range_map import Known, joined
from pydanube.dispatch.reliable import DELAYED_MAX, ReliableDispatcher
from pydanube.model.ids import ConsumerId, Offset
from pydanube.model.progress import Progress

ABSENCE_MS_MAX = 3_000
"""A consumer that is away for longer loses its keys."""
READ_AHEAD_MAX = 10_000
"""How many messages may be known by key and wait, before no more are read."""
_READ_COUNT_MIN = 64
_READ_AGAIN_MS = 50


class _Key(Struct, eq=False):
    """A key with messages that are not settled. Its first one is delivered, or next to be."""

    ownership: Ownership
    first: int
    delivered: bool = False
    later: deque[int] | None = None


class KeySharedDispatcher(ReliableDispatcher):
    """Delivers the messages of a key in order, to the key's owner, each after the one before.

    A key whose first message fails, waits for its own time, is blocked, or belongs to a consumer
    without room delays no other key: as long as the window and somebody's outbox have room,
    messages further on are looked at, up to a bound. A message that no known consumer wants is
    settled; one that is wanted only by a consumer who is away waits.
    """

    def __init__(self, progress: Progress, settings: DispatchSettings, seen_end: Offset) -> None:
        super().__init__(progress, settings, seen_end)
        self._members: dict[ConsumerId, KeyMember] = {}
        self._open: dict[ConsumerId, KeyMember] = {}
        """Those with room."""
        self._away: dict[ConsumerId, KeyMember] = {}
        """Those who left and have not lost their keys yet, longest absence first."""
        self._owners = KeyOwners()
        self._keys: dict[str, _Key] = {}
        self._firsts: dict[int, _Key] = {}
        self._counted: dict[int, int] = {}
        """Attempts from before a restart, of messages not delivered since."""
        self._retry_turns: list[int] = []
        self._due_turns: list[int] = []
        self._new_turns: list[int] = []
        """Firsts that may go out if their owner has room: heaps, lowest offset first."""
        self._unplaced: list[int] = []
        """Firsts that only consumers want who are not present."""
        self._read_ahead_count = 0
        self._reading_from: int | None = None
        self._read_again_at_ms = 0

    # Consumers.

    @override
    def _join(self, event: ConsumerJoined) -> None:
        member = self._members.get(event.consumer)
        if member is None:
            member = KeyMember(event.consumer, filters=tuple(map(Glob, event.filters)))
            self._members[member.id] = member
        elif member.connected:
            self._take_back(member.id)
        member.connected = True
        self._away.pop(member.id, None)
        self._owners.enter(member)
        self._set_credit(member, event.credit)
        self._place_unplaced()

    @override
    def _leave(self, consumer: ConsumerId) -> None:
        member = self._members.get(consumer)
        if member is not None and member.connected:
            member.connected = False
            self._set_credit(member, 0)
            member.left_at_ms = self._now_ms
            self._away[consumer] = member
            self._wake_by(self._now_ms + ABSENCE_MS_MAX)
            self._take_back(consumer)

    @override
    def _remove(self, consumer: ConsumerId) -> None:
        self._leave(consumer)
        member = self._members.pop(consumer, None)
        if member is not None:
            self._away.pop(consumer, None)
            self._disown(member)
            self._place_unplaced()

    @override
    def _drain(self, consumer: ConsumerId, count: int) -> None:
        member = self._members.get(consumer)
        if member is not None and member.connected:
            self._set_credit(member, member.credit + count)

    def _set_credit(self, member: KeyMember, credit: int) -> None:
        member.credit = credit
        if not credit:
            self._open.pop(member.id, None)
            return
        self._open[member.id] = member
        _move(member.parked_retries, self._retry_turns, credit)
        _move(member.parked_new, self._new_turns, credit)

    def _disown(self, member: KeyMember) -> None:
        """Let a consumer's keys and what waits for it go to others."""
        self._owners.exit(member)
        _move(member.parked_retries, self._retry_turns, len(member.parked_retries))
        _move(member.parked_new, self._new_turns, len(member.parked_new))

    def _place_unplaced(self) -> None:
        for offset in self._unplaced:
            self._wait_for_turn(offset)
        self._unplaced.clear()

    # Time.

    @override
    def _pass_time(self) -> None:
        while self._away:
            member = next(iter(self._away.values()))
            if member.left_at_ms + ABSENCE_MS_MAX > self._now_ms:
                break
            del self._away[member.id]
            self._disown(member)
        super()._pass_time()

    @override
    def _next_timer_ms(self) -> int:
        timer = super()._next_timer_ms()
        if self._away:
            timer = min(timer, next(iter(self._away.values())).left_at_ms + ABSENCE_MS_MAX)
        if self._read_again_at_ms > self._now_ms:
            timer = min(timer, self._read_again_at_ms)
        return timer

    # Keys and their messages.

    @override
    def _take_keys(self, event: KeysRead) -> None:
        self._reading_from = None
        if not event.keys:
            self._read_again_at_ms = self._now_ms + _READ_AGAIN_MS
            self._wake_by(self._read_again_at_ms)
            return
        assert event.start <= self._undelivered.position, "keys were read that nobody asked for"
        # What was skipped since they were asked for is not undelivered any more.
        for start, end, attempts in self._undelivered.take(
            event.start, event.start + len(event.keys)
        ):
            for offset in range(start, end):
                self._append(event.keys[offset - event.start], offset)
                if attempts:
                    self._counted[offset] = attempts

    def _append(self, name: str, offset: int) -> None:
        self._read_ahead_count += 1
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = _Key(self._owners.use(name), offset)
            self._firsts[offset] = key
            heappush(self._new_turns, offset)
        elif key.later is None:
            key.later = deque((offset,))
        else:
            key.later.append(offset)

    @override
    def _settle(self, pieces: list[Known[int]]) -> None:
        super()._settle(pieces)
        for start, end, _ in pieces:
            for offset in range(start, end):
                self._release(offset)

    def _release(self, offset: int) -> None:
        """Let the key's next message follow a first one that is settled."""
        key = self._firsts.pop(offset)
        if not key.delivered:
            self._read_ahead_count -= 1
            self._counted.pop(offset, None)
        if key.later:
            key.first = key.later.popleft()
            key.delivered = False
            self._firsts[key.first] = key
            heappush(self._new_turns, key.first)
        else:
            del self._keys[key.ownership.key]
            self._owners.release(key.ownership)

    @override
    def _after_readying(self, start: int, end: int) -> None:
        for offset in range(start, end):
            heappush(self._retry_turns, offset)

    @override
    def _after_due(self, start: int, end: int) -> None:
        for offset in range(start, end):
            heappush(self._due_turns, offset)

    @override
    def _seek(self, offset: int) -> None:
        super()._seek(offset)
        for key in self._keys.values():
            self._owners.release(key.ownership)
        for member in self._members.values():
            member.parked_retries.clear()
            member.parked_new.clear()
        self._keys.clear()
        self._firsts.clear()
        self._counted.clear()
        self._retry_turns.clear()
        self._due_turns.clear()
        self._new_turns.clear()
        self._unplaced.clear()
        self._read_ahead_count = 0
        self._reading_from = None
        self._read_again_at_ms = 0

    @override
    def _skip(self, start: int, end: int) -> None:
        super()._skip(start, end)
        # It may have come in place of the keys that were asked for.
        if self._reading_from is not None and self._reading_from < self._undelivered.position:
            self._reading_from = None

    @override
    def _take_undelivered(self, start: int, end: int) -> list[Known[int]]:
        taken = super()._take_undelivered(start, end)
        for key in list(self._keys.values()):
            waiting = key.later or ()
            skipped = [offset for offset in waiting if start <= offset < end]
            if skipped:
                key.later = deque(offset for offset in waiting if not start <= offset < end)
            for offset in skipped:
                self._read_ahead_count -= 1
                self._counted.pop(offset, None)
            if start <= key.first < end and not key.delivered:
                skipped.append(key.first)
                self._release(key.first)
            taken += [(offset, offset + 1, 0) for offset in skipped]
        return joined([(at, to, 0) for at, to, _ in sorted(taken)])

    # Delivery.

    @override
    def _fill(self) -> None:
        while self._retry_turns and self._open and self._allowance():
            self._resend(heappop(self._retry_turns))
        while self._due_turns and self._open and self._room() > 0 and self._allowance():
            self._send_due(heappop(self._due_turns))
        while self._new_turns and self._may_take_new() and self._allowance():
            self._send_new(heappop(self._new_turns))
        self._ask_for_keys()

    def _may_take_new(self) -> bool:
        return bool(self._open) and self._room() > 0 and self._delayed.count < DELAYED_MAX

    def _resend(self, offset: int) -> None:
        attempts = self._retries.take_ready(offset, offset + 1)
        if attempts is None:
            if self._delayed.is_ready(offset):
                heappush(self._due_turns, offset)  # It waited for its owner, not for a retry.
            return  # Or it was settled while it waited for its turn.
        member = self._place(offset)
        if member is not None:
            self._hand_over(member, offset, attempts + 1)
        elif offset in self._firsts:
            self._retries.make_ready(offset, offset + 1, attempts)

    def _send_due(self, offset: int) -> None:
        attempts = self._delayed.take_ready(offset, offset + 1)
        if attempts is None:
            return  # Settled while it waited for its turn.
        member = self._place(offset)
        if member is not None:
            self._hand_over(member, offset, attempts + 1)
        elif offset in self._firsts:
            self._delayed.make_ready(offset, offset + 1, attempts)

    def _send_new(self, offset: int) -> None:
        key = self._firsts.get(offset)
        if key is None or key.delivered:
            return  # Settled while it waited for its turn.
        member = self._place(offset)
        if member is not None:
            key.delivered = True
            self._read_ahead_count -= 1
            self._hand_over(member, offset, self._counted.pop(offset, 0) + 1)

    def _hand_over(self, member: KeyMember, offset: int, attempt: int) -> None:
        self._deliver(member, offset, offset + 1, attempt)
        if not member.credit:
            del self._open[member.id]

    def _place(self, offset: int) -> KeyMember | None:
        """Return the consumer that gets a key's first message now; if none can, let it wait.

        Without anybody who wants it, it is settled.
        """
        key = self._firsts[offset]
        owner = self._owners.owner(key.ownership)
        if owner is None:
            name = key.ownership.key
            if any(member.wants(name) for member in self._members.values()):
                self._unplaced.append(offset)
            else:
                self._settle([(offset, offset + 1, 0)])
        elif owner.credit:
            return owner
        elif key.delivered:
            heappush(owner.parked_retries, offset)
        else:
            heappush(owner.parked_new, offset)
        return None

    def _wait_for_turn(self, offset: int) -> None:
        key = self._firsts.get(offset)
        if key is not None:
            heappush(self._retry_turns if key.delivered else self._new_turns, offset)

    def _ask_for_keys(self) -> None:
        """Look further on if there is room for more than can be delivered of what is known."""
        start = self._undelivered.position
        waiting = self._read_ahead_count + self._exhausted.blocked_count
        if (
            start < self._end
            and not self._new_turns
            and self._may_take_new()
            and self._reading_from is None
            and waiting <= READ_AHEAD_MAX
            and self._read_again_at_ms <= self._now_ms
        ):
            count = min(self._end - start, max(self._settings.window, _READ_COUNT_MIN))
            self._reading_from = start
            self._actions.append(ReadKeys(Offset(start), count))


def _move(source: list[int], target: list[int], count: int) -> None:
    for _ in range(min(count, len(source))):
        heappush(target, heappop(source))
