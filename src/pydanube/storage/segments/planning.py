"""Decides what is exported next, and which segments have had their time. Pure."""

from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import Protocol, TypeVar

from msgspec import Struct

from pydanube.model.ids import Offset, TopicId
from pydanube.storage.segments.catalog import SegmentEntry


class Why(Enum):
    """Why a range of a topic becomes a segment; the more urgent first."""

    SEAL = "the topic is to be read elsewhere"
    SPACE = "the journal needs the space"
    SIZE = "enough has gathered"
    AGE = "the oldest of it has waited long enough"


class Unexported(Struct, frozen=True, kw_only=True):
    """What a topic has in the journal and in no segment."""

    topic_id: TopicId
    bytes: int
    since_ms: int
    """When the oldest of it came, by the monotonic clock."""
    position: int
    """Where the oldest of it lies in the journal."""
    not_before_ms: int = 0
    """After a failure: when to try again."""
    sealing: bool = False


class ExportLimits(Struct, frozen=True, kw_only=True):
    """When to export, and how much at a time."""

    seal_bytes: int
    seal_ms: int
    jobs_max: int
    bytes_max: int
    """Of all exports under way together: what they hold in memory."""


class Export(Struct, frozen=True):
    """One topic whose oldest messages are to become a segment."""

    topic_id: TopicId
    why: Why
    bytes: int
    """About how many of the journal's bytes it takes."""


class ExportPlan(Struct, frozen=True):
    """What is due, the most urgent first, and when more may become due by time alone."""

    exports: list[Export]
    look_again_ms: int | None


def plan_exports(
    topics: Iterable[Unexported], limits: ExportLimits, *, now_ms: int, short_of_space: bool
) -> ExportPlan:
    """Find what is due.

    When the journal is short of space everything is, however little; then, as among equals,
    whoever holds the journal's oldest bytes goes first.
    """
    due: list[tuple[int, int, Export]] = []
    look_again: list[int] = []
    for topic in topics:
        if topic.not_before_ms > now_ms:
            look_again.append(topic.not_before_ms)
            continue
        why = _reason(topic, limits, now_ms, short_of_space=short_of_space)
        if why is None:
            look_again.append(topic.since_ms + limits.seal_ms)
            continue
        export = Export(topic.topic_id, why, min(topic.bytes, limits.seal_bytes))
        due.append((_URGENCY[why], topic.position, export))
    due.sort(key=lambda each: each[:2])
    return ExportPlan([export for _, _, export in due], min(look_again, default=None))


def may_begin(export: Export, busy: Collection[Export], limits: ExportLimits) -> bool:
    """Tell whether another export fits beside those under way; one alone always does."""
    if not busy:
        return True
    taken = sum(each.bytes for each in busy)
    return len(busy) < limits.jobs_max and taken + export.bytes <= limits.bytes_max


def _reason(
    topic: Unexported, limits: ExportLimits, now_ms: int, *, short_of_space: bool
) -> Why | None:
    if topic.sealing:
        return Why.SEAL
    if short_of_space:
        return Why.SPACE
    if topic.bytes >= limits.seal_bytes:
        return Why.SIZE
    return Why.AGE if now_ms - topic.since_ms >= limits.seal_ms else None


_URGENCY = {why: number for number, why in enumerate(Why)}


class RetentionRule(Struct, frozen=True, kw_only=True):
    """How long a topic's history stays. None is for ever."""

    time_ms: int | None = None
    bytes_max: int | None = None
    held_from: Offset | None = None
    """From here on somebody has not read yet, and nothing goes; None: nobody holds anything."""


def plan_expiry(
    entries: Sequence[SegmentEntry], rule: RetentionRule, now_ms: int
) -> list[SegmentEntry]:
    """Return the segments to remove, from the oldest on.

    Time counts from when a segment was sealed, by the broker's clock: a message stays at least
    that long. Size counts the segments' own bytes; the newest segment always fits.
    """
    expired = []
    total = sum(entry.bytes for entry in entries)
    for number, entry in enumerate(entries):
        outdated = rule.time_ms is not None and now_ms - entry.created_ms >= rule.time_ms
        newest = number == len(entries) - 1
        too_much = rule.bytes_max is not None and total > rule.bytes_max and not newest
        held = rule.held_from is not None and entry.end > rule.held_from
        if held or not (outdated or too_much):
            break
        expired.append(entry)
        total -= entry.bytes
    return expired


class Joinable(Protocol):
    """What a plan must know about a segment."""

    @property
    def raw_bytes(self) -> int:
        """Its size in the journal."""

    @property
    def is_lost(self) -> bool:
        """Whether it holds nothing."""


Segment = TypeVar("Segment", bound=Joinable)


def plan_compactions(
    entries: Sequence[Segment], run_min: int, bytes_max: int
) -> list[list[Segment]]:
    """Return all runs that are worth joining, from the oldest on; none overlaps another."""
    runs = []
    rest = list(entries)
    while run := plan_compaction(rest, run_min, bytes_max):
        runs.append(run)
        rest = rest[rest.index(run[-1]) + 1 :]
    return runs


def plan_compaction(entries: Sequence[Segment], run_min: int, bytes_max: int) -> list[Segment]:
    """Return the oldest run of small neighbours that is worth joining; empty if there is none.

    Small is less than half of `bytes_max`, in the journal's bytes; the joined segment has no more
    than that. A run has `run_min` segments at least. Lost ranges stay what they are.
    """
    run: list[Segment] = []
    total = 0
    for entry in entries:
        small = not entry.is_lost and entry.raw_bytes * 2 < bytes_max
        if run and (not small or total + entry.raw_bytes > bytes_max):
            if len(run) >= run_min:
                return run
            run, total = [], 0
        if small:
            run.append(entry)
            total += entry.raw_bytes
    return run if len(run) >= run_min else []
