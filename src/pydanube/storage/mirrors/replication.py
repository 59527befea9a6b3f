"""Which records of a topic are on enough journals to be acknowledged, and on whose. Pure.

A topic's records, batches and progress alike, are numbered 1, 2, 3 … in the order in which its
owner journals them, anew for every stream. The position of a broker is the number up to which its
journal has synced them all.
"""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from pydanube.model.ids import BrokerId


def majority(members: int) -> int:
    """Return how many of so many brokers are more than half of them."""
    return members // 2 + 1


def answers_needed(members: int) -> int:
    """Return how many of so many brokers cannot all miss what a majority of them has."""
    return members - majority(members) + 1


class Replication:
    """What one topic may acknowledge: records on its own journal and on a majority of the set.

    A set counts once it is recorded: until then nothing is acknowledged. While it is being
    replaced, a record needs a majority of either set, since nobody knows which of the two a new
    owner would ask.
    """

    def __init__(self, own: BrokerId, recorded: tuple[BrokerId, ...] = ()) -> None:
        assert not recorded or recorded == (own,), "whoever else is in a set has a stream already"
        self.own = own
        self.last = 0
        """Of the record that was added last."""
        self.own_synced = 0
        self.acknowledged = 0
        """Never goes back: others have been told."""
        self.members: tuple[BrokerId, ...] = recorded
        """As recorded, the owner first; empty while none is."""
        self.next_members: tuple[BrokerId, ...] | None = None
        """As it may be recorded at any moment."""
        self._synced_early: set[int] = set()
        self._positions: dict[BrokerId, int] = {}

    def add(self) -> int:
        """Number the next record."""
        self.last += 1
        return self.last

    def synced(self, number: int) -> None:
        """Take in that the owner's own journal holds a record for good."""
        self._synced_early.add(number)
        while self.own_synced + 1 in self._synced_early:
            self.own_synced += 1
            self._synced_early.discard(self.own_synced)
        self._advance()

    def has(self, mirror: BrokerId, position: int) -> None:
        """Take in what a mirror has synced by now; answers may come in any order."""
        self.begins(mirror, max(position, self.position(mirror)))

    def begins(self, mirror: BrokerId, position: int) -> None:
        """Take in what a mirror has that was asked anew; it may have lost what it had before."""
        assert position <= self.last, "nobody has what was never sent"
        self._positions[mirror] = position
        self._advance()

    def position(self, broker: BrokerId) -> int:
        """Return up to where a broker has everything, as far as it is known."""
        return self.own_synced if broker == self.own else self._positions.get(broker, 0)

    # Changing the set.

    def begin_change(self, members: Sequence[BrokerId]) -> None:
        """Ask for both majorities from now on; to be called before the set can be recorded."""
        assert members[0] == self.own, "the owner keeps a copy itself"
        assert self.next_members is None, "one change at a time"
        self.next_members = tuple(members)

    @property
    def is_covered(self) -> bool:
        """Whether a majority of the next set has all that was acknowledged: it may be recorded."""
        assert self.next_members is not None, "a change is under way"
        return self._reached(self.next_members) >= self.acknowledged

    def end_change(self, *, recorded: bool) -> None:
        """Go on with the next set alone, or with the set of before if it surely was not recorded.

        While it is not known which, the change goes on. A set is recorded once it is covered.
        """
        assert self.next_members is not None, "a change is under way"
        if recorded:
            self.members = self.next_members
        self.next_members = None
        self._advance()

    def _advance(self) -> None:
        if not self.members:
            return
        position = min(self.own_synced, self._reached(self.members))
        if self.next_members is not None:
            position = min(position, self._reached(self.next_members))
        self.acknowledged = max(self.acknowledged, position)

    def _reached(self, members: Sequence[BrokerId]) -> int:
        positions = sorted(map(self.position, members), reverse=True)
        return positions[majority(len(members)) - 1]


def plan_members(
    own: BrokerId,
    members: Sequence[BrokerId],
    missing: Collection[BrokerId],
    candidates: Sequence[BrokerId],
    wanted: int,
) -> tuple[BrokerId, ...]:
    """Return who should keep a topic's copies: the owner, who works, then who is free.

    Without enough brokers the set is smaller than wanted: a topic goes on with fewer copies rather
    than not at all, and grows again.
    """
    staying = [member for member in members if member != own and member not in missing]
    free = [
        broker
        for broker in candidates
        if broker != own and broker not in members and broker not in missing
    ]
    return (own, *[*staying, *free][: max(wanted, 1) - 1])


class Answer(Struct, frozen=True, kw_only=True):
    """What a broker says it holds of a topic when a new owner asks."""

    broker: BrokerId
    epoch: int
    stream: int
    """0: it was the owner of that epoch itself."""
    sequence: int | None
    """None: it never had everything, or has lost it."""
    end: int
    """Behind the last message it has."""

    @property
    def rank(self) -> tuple[int, bool, int, int]:
        """Who ranks higher has everything the other one has that may have been acknowledged."""
        # An owner acknowledges only what its own journal has, so nobody has more of its epoch.
        return self.epoch, self.stream == 0, self.sequence or 0, self.end


def choose_answer(
    set_epoch: int, members: Collection[BrokerId], answers: Mapping[BrokerId, Answer]
) -> Answer | None:
    """Return whose copy holds all that was acknowledged; None while too few have answered.

    A member that has nothing of the set's epoch, or no whole copy, has lost its journal since: it
    cannot tell what was on it, and does not count. One that holds a later epoch is enough: whoever
    began that had recovered everything before, and acknowledged nothing, or its set were recorded.
    """
    counted = [
        answer
        for broker, answer in answers.items()
        if broker in members and answer.sequence is not None and answer.epoch >= set_epoch
    ]
    if not counted:
        return None
    best = max(counted, key=lambda answer: answer.rank)
    enough = best.epoch > set_epoch or len(counted) >= answers_needed(len(members))
    return best if enough else None
