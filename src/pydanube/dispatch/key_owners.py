"""Which consumer a routing key belongs to."""

from collections import OrderedDict

from msgspec import Struct, field

from pydanube.dispatch.globs import Glob
from pydanube.dispatch.hash_ring import HashRing
from pydanube.dispatch.members import Member
from pydanube.model.ids import ConsumerId

REMEMBERED_KEYS_MAX = 100_000


class KeyMember(Member, eq=False):
    """A consumer of a Key-Shared subscription."""

    filters: tuple[Glob, ...] = ()
    present: bool = False
    """Whether keys may belong to it: it is connected, or was a moment ago."""
    key_count: int = 0
    """How many remembered keys belong to it."""
    left_at_ms: int = 0
    parked_retries: list[int] = field(default_factory=list)
    parked_new: list[int] = field(default_factory=list)
    """Offsets that wait until it has room: heaps, lowest offset first."""

    def wants(self, key: str) -> bool:
        """Tell whether messages of this key are for it."""
        return not self.filters or any(glob.matches(key) for glob in self.filters)


class Ownership(Struct, eq=False):
    """A key and the consumer it belongs to."""

    key: str
    owner: KeyMember | None = None
    generation: int = 0


class KeyOwners:
    """Gives each key to one consumer: on first sight to the one with room and the fewest keys.

    A key stays with its owner as long as that one is present. When another consumer enters, keys
    move to it one by one, each when it is asked for next, until the loads differ by one at most.
    Whoever asks must have nothing of the key in flight. Keys in use are always remembered, of the
    others the last `remembered_max`.
    """

    def __init__(self, remembered_max: int = REMEMBERED_KEYS_MAX) -> None:
        self._remembered_max = remembered_max
        self._present: dict[ConsumerId, KeyMember] = {}
        self._ring = HashRing()
        self._generation = 0
        self._keys: dict[str, Ownership] = {}
        self._idle: OrderedDict[str, Ownership] = OrderedDict()

    def enter(self, member: KeyMember) -> None:
        """Let keys belong to a consumer."""
        if not member.present:
            member.present = True
            self._present[member.id] = member
            self._ring.add(member.id)
            self._generation += 1

    def exit(self, member: KeyMember) -> None:
        """Let a consumer's keys go to others, each when it is asked for next."""
        if member.present:
            member.present = False
            del self._present[member.id]
            self._ring.remove(member.id)

    def use(self, key: str) -> Ownership:
        """Return the ownership of a key, and remember it at least until it is released."""
        ownership = self._keys.get(key)
        if ownership is None:
            ownership = self._keys[key] = Ownership(key)
        else:
            self._idle.pop(key, None)
        return ownership

    def release(self, ownership: Ownership) -> None:
        """Take note that a key is not in use any more."""
        if ownership.owner is None:
            del self._keys[ownership.key]
            return
        self._idle[ownership.key] = ownership
        if len(self._idle) > self._remembered_max:
            key, forgotten = self._idle.popitem(last=False)
            del self._keys[key]
            _give(forgotten, None)

    def owner(self, ownership: Ownership) -> KeyMember | None:
        """Return who gets the key's next message; None if nobody present wants it."""
        owner = ownership.owner
        if owner is None or not owner.present:
            _give(ownership, self._least_loaded(ownership.key))
            ownership.generation = self._generation
        elif ownership.generation != self._generation and owner.connected:
            other = self._least_loaded(ownership.key)
            if other is not None and other.credit and other.key_count + 1 < owner.key_count:
                _give(ownership, other)
            ownership.generation = self._generation
        return ownership.owner

    def _least_loaded(self, key: str) -> KeyMember | None:
        eligible = [member for member in self._present.values() if member.wants(key)]
        # One that is away for a moment or has no room keeps its keys, but gets no more of them.
        eligible = [member for member in eligible if member.connected] or eligible
        eligible = [member for member in eligible if member.credit] or eligible
        if not eligible:
            return None
        least = min(member.key_count for member in eligible)
        tied = {member.id: member for member in eligible if member.key_count == least}
        if len(tied) == 1:
            return next(iter(tied.values()))
        chosen = self._ring.owner(key, tied)
        assert chosen is not None, "a present consumer is on the ring"
        return tied[chosen]


def _give(ownership: Ownership, owner: KeyMember | None) -> None:
    if ownership.owner is not None:
        ownership.owner.key_count -= 1
    ownership.owner = owner
    if owner is not None:
        owner.key_count += 1
