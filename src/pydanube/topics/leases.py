"""Leases of cursors: who may advance one, and how long it keeps history back while nobody does.

A program that mirrors its progress in a cursor may end without a word. Its cursor would hold the
topic's history for ever; with a lease it does so only until nobody has touched it for a time.
"""

from msgspec import Struct, structs

from pydanube.errors import Conflict
from pydanube.runtime.clock import Clock

LEASE_MS = 7 * 24 * 3600 * 1000
"""How long an untouched cursor holds history, unless its holder says otherwise."""
_SHARES = 8


class Lease(Struct, frozen=True, kw_only=True):
    """What a cursor's holder has asked for, as the catalogue keeps it."""

    holder: str
    ttl_ms: int = LEASE_MS
    hold: bool = True
    """Whether history the cursor has not passed stays; without it the cursor only shows a lag."""
    touched_ms: int = 0
    """When the holder last showed up, by the wall clock; up to an eighth of `ttl_ms` ago."""


class _Kept:
    __slots__ = ("lapse_told", "lease", "touched_ms")

    def __init__(self, lease: Lease, touched_ms: int) -> None:
        self.lease = lease
        self.touched_ms = touched_ms
        """By the monotonic clock: a wall clock that jumps lets no hold lapse."""
        self.lapse_told = False


class CursorLeases:
    """The leases of one topic's subscriptions. A subscription without one holds for ever.

    After a restart a hold lives for an eighth of its time at least, so that a holder that is still
    there can show up.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def restore(self, subscription: str, lease: Lease) -> None:
        """Know a lease again after a restart."""
        away_ms = max(self._clock.now_ms() - lease.touched_ms, 0)
        away_ms = min(away_ms, lease.ttl_ms - lease.ttl_ms // _SHARES)
        self._kept[subscription] = _Kept(lease, self._clock.monotonic_ms() - away_ms)

    def begin(self, subscription: str, lease: Lease) -> None:
        """Let the newest holder have the cursor."""
        self._kept[subscription] = _Kept(lease, self._clock.monotonic_ms())

    def remove(self, subscription: str) -> None:
        """Forget the lease of a subscription that is gone."""
        self._kept.pop(subscription, None)

    def get(self, subscription: str) -> Lease | None:
        """Return a subscription's lease."""
        kept = self._kept.get(subscription)
        return None if kept is None else kept.lease

    def check_holder(self, subscription: str, holder: str | None) -> None:
        """Refuse whoever is not the newest holder."""
        kept = self._kept.get(subscription)
        if kept is not None and holder != kept.lease.holder:
            who = "nobody" if holder is None else holder
            raise Conflict(
                f"cursor {subscription} is held by {kept.lease.holder}, not by {who}; take it over "
                "with cursor.lease, or leave it to the newer holder"
            )
        if kept is None and holder is not None:
            raise Conflict(
                f"cursor {subscription} has no lease; {holder} takes it with cursor.lease"
            )

    def touch(self, subscription: str) -> None:
        """Take note that the holder showed up: its time begins anew."""
        kept = self._kept.get(subscription)
        if kept is not None:
            kept.touched_ms = self._clock.monotonic_ms()
            kept.lapse_told = False

    def holds(self, subscription: str) -> bool:
        """Tell whether history that the subscription has not passed must stay because of it."""
        kept = self._kept.get(subscription)
        return kept is None or (kept.lease.hold and not self.has_lapsed(subscription))

    def has_lapsed(self, subscription: str) -> bool:
        """Tell whether the holder has not shown up in time."""
        kept = self._kept.get(subscription)
        if kept is None:
            return False
        return self._clock.monotonic_ms() - kept.touched_ms > kept.lease.ttl_ms

    def newly_lapsed(self) -> list[tuple[str, Lease]]:
        """Return the holds that have lapsed, each once."""
        found = []
        for name, kept in self._kept.items():
            if kept.lease.hold and not kept.lapse_told and self.has_lapsed(name):
                kept.lapse_told = True
                found.append((name, kept.lease))
        return found

    def outdated(self) -> list[tuple[str, Lease]]:
        """Return what the catalogue should say instead; `stored` follows once it does."""
        ago = self._clock.monotonic_ms() - self._clock.now_ms()
        found = []
        for name, kept in self._kept.items():
            touched_ms = kept.touched_ms - ago
            if touched_ms - kept.lease.touched_ms > kept.lease.ttl_ms // _SHARES:
                found.append((name, structs.replace(kept.lease, touched_ms=touched_ms)))
        return found

    def stored(self, subscription: str, lease: Lease) -> None:
        """Take note of what the catalogue says now, unless another lease began meanwhile."""
        kept = self._kept.get(subscription)
        if kept is not None and kept.lease.holder == lease.holder:
            kept.lease = lease
