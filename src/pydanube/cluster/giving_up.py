"""What is known of a broker that could not write, and whether it may serve again. Pure."""

from msgspec.structs import replace

from pydanube.cluster.records import SHUTDOWN, BrokerRecord, BrokerState

CANNOT_WRITE = "cannot_write"
"""It gave its topics up: it takes some again once it has recovered."""
CANNOT_WRITE_AGAIN = "cannot_write_again"
"""It gave them up soon after it had come back: it takes none before an operator says so."""
RECOVERED = "recovered"

TRUSTED_MS = 600_000
"""Whoever cannot write again so soon after a recovery has a disk that an operator must see to."""


def state_given_up(
    before: BrokerState | None, why: str, now_ms: int, place: BrokerRecord
) -> BrokerState:
    """Return the state of a broker that gives its topics up; an operator's word outlasts that."""
    if before is not None and before.mode != "active":
        return replace(before, why=why, time_ms=now_ms, place=place)
    again = (
        before is not None and before.reason == RECOVERED and now_ms - before.time_ms < TRUSTED_MS
    )
    return BrokerState(
        mode="drained",
        reason=CANNOT_WRITE_AGAIN if again else CANNOT_WRITE,
        why=why,
        time_ms=now_ms,
        place=place,
    )


def state_at_start(found: BrokerState | None, now_ms: int, *, has_topics: bool) -> BrokerState:
    """Return the state in which a broker serves that was started, and has recovered.

    `has_topics` says whether it has still topics, which nobody else could take.
    """
    if found is None or found.reason == SHUTDOWN:
        return BrokerState(mode="active", reason="boot")
    if found.reason == CANNOT_WRITE:
        return BrokerState(mode="active", reason=RECOVERED, time_ms=now_ms)
    if found.reason == CANNOT_WRITE_AGAIN:
        return replace(found, mode="draining" if has_topics else "drained", place=None)
    return replace(found, why="", time_ms=0, place=None) if found.why else found
