from msgspec import structs

from pydanube.model.ids import Offset, TopicId
from pydanube.storage.segments.catalog import SegmentEntry
from pydanube.storage.segments.planning import (
    Export,
    ExportLimits,
    RetentionRule,
    Unexported,
    Why,
    may_begin,
    plan_compaction,
    plan_compactions,
    plan_expiry,
    plan_exports,
)

LIMITS = ExportLimits(seal_bytes=100, seal_ms=1000, jobs_max=3, bytes_max=250)


def topic(number: int, size: int, since_ms: int = 0, **rest) -> Unexported:
    fields = {"position": number * 10, **rest}
    return Unexported(topic_id=TopicId(number), bytes=size, since_ms=since_ms, **fields)


def chosen(*topics: Unexported, now_ms: int = 0, space: bool = False):
    plan = plan_exports(topics, LIMITS, now_ms=now_ms, short_of_space=space)
    return [(export.topic_id, export.why) for export in plan.exports], plan.look_again_ms


def test_a_topic_is_exported_when_enough_has_gathered() -> None:
    assert chosen(topic(1, 99), topic(2, 100)) == ([(2, Why.SIZE)], 1000)


def test_a_topic_is_exported_when_its_oldest_message_has_waited() -> None:
    topics = topic(1, 5, since_ms=0), topic(2, 5, since_ms=600)
    assert chosen(*topics, now_ms=999) == ([], 1000)
    assert chosen(*topics, now_ms=1000) == ([(1, Why.AGE)], 1600)


def test_nothing_to_export_needs_no_look() -> None:
    assert chosen() == ([], None)


def test_a_topic_waits_after_a_failure() -> None:
    assert chosen(topic(1, 500, not_before_ms=50), now_ms=49) == ([], 50)
    assert chosen(topic(1, 500, not_before_ms=50), now_ms=50) == ([(1, Why.SIZE)], None)


def test_the_urgent_go_first_and_the_oldest_bytes_among_them() -> None:
    seal, big, old = topic(5, 1, sealing=True), topic(4, 100), topic(1, 5, since_ms=-1000)
    assert chosen(old, big, seal)[0] == [(5, Why.SEAL), (4, Why.SIZE), (1, Why.AGE)]
    assert chosen(topic(4, 100), topic(2, 100))[0] == [(2, Why.SIZE), (4, Why.SIZE)]


def test_when_space_is_short_the_holders_of_the_oldest_bytes_go_first() -> None:
    topics = topic(3, 100), topic(1, 1), topic(2, 99)
    assert chosen(*topics, space=True)[0] == [(1, Why.SPACE), (2, Why.SPACE), (3, Why.SPACE)]


def test_no_more_is_begun_than_jobs_and_memory_allow() -> None:
    def export(size: int) -> Export:
        return Export(TopicId(1), Why.SIZE, size)

    assert may_begin(export(10), [export(10)] * 2, LIMITS)
    assert not may_begin(export(10), [export(10)] * 3, LIMITS)
    assert may_begin(export(100), [export(150)], LIMITS)
    assert not may_begin(export(101), [export(150)], LIMITS)


def test_an_export_larger_than_the_memory_goes_alone() -> None:
    huge = Export(TopicId(1), Why.SIZE, 10_000)
    assert may_begin(huge, [], LIMITS)
    assert not may_begin(huge, [Export(TopicId(2), Why.SIZE, 1)], LIMITS)


# Retention.


def history(*sizes: int) -> list[SegmentEntry]:
    """Segments of ten messages each, sealed one second after the other."""
    return [
        SegmentEntry(
            key=str(number),
            topic="/default/t",
            topic_id=TopicId(1),
            base=Offset(number * 10),
            end=Offset(number * 10 + 10),
            rows=10,
            bytes=size,
            raw_bytes=size,
            crc32c=0,
            min_time_ms=0,
            max_time_ms=0,
            epoch=0,
            schema_ids=(),
            created_ms=number * 1000,
        )
        for number, size in enumerate(sizes)
    ]


def expired(rule: RetentionRule, now_ms: int = 0, entries=None) -> int:
    return len(plan_expiry(history(10, 10, 10) if entries is None else entries, rule, now_ms))


def test_history_stays_for_ever_unless_told_otherwise() -> None:
    assert expired(RetentionRule(), now_ms=10**15) == 0


def test_history_expires_by_the_time_it_was_sealed() -> None:
    rule = RetentionRule(time_ms=5000)
    assert [expired(rule, now) for now in (4999, 5000, 6999, 7000, 99999)] == [0, 1, 2, 3, 3]


def test_history_expires_by_size_but_for_the_newest_segment() -> None:
    sizes = [expired(RetentionRule(bytes_max=limit)) for limit in (30, 29, 20, 19, 10, 9, 0)]
    assert sizes == [0, 1, 1, 2, 2, 2, 2]


def test_nothing_goes_that_somebody_has_not_read() -> None:
    def left(held_from: int | None) -> int:
        held = None if held_from is None else Offset(held_from)
        return 3 - expired(RetentionRule(time_ms=0, held_from=held), 10**9)

    assert [left(held) for held in (None, 30, 29, 20, 19, 10, 9, 0)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert expired(RetentionRule(bytes_max=0, held_from=Offset(10))) == 1


# Compaction.


def joined(*sizes: int, lost: int | None = None) -> list[int]:
    entries = history(*sizes)
    if lost is not None:
        entries[lost] = structs.replace(entries[lost], key="")
    return [int(entry.key) for entry in plan_compaction(entries, run_min=3, bytes_max=100)]


def test_small_neighbours_are_joined_once_there_are_enough() -> None:
    assert joined(10, 10) == []
    assert joined(10, 10, 10) == [0, 1, 2]
    assert joined(10, 10, 10, 10) == [0, 1, 2, 3]


def test_a_joined_segment_is_no_larger_than_a_sealed_one() -> None:
    assert joined(40, 40, 20, 1, 1) == [0, 1, 2]
    assert joined(40, 40, 40, 10, 10, 10) == [2, 3, 4, 5]


def test_large_segments_and_lost_ranges_stay() -> None:
    assert joined(60, 10, 10, 10, 60) == [1, 2, 3]
    assert joined(10, 10, 50, 10, 10) == []
    assert joined(10, 10, 10, 10, 10, 10, lost=2) == [3, 4, 5]
    assert joined() == []


def test_all_runs_of_a_history_are_found_and_none_overlaps() -> None:
    def runs(*sizes: int) -> list[list[int]]:
        found = plan_compactions(history(*sizes), run_min=2, bytes_max=100)
        return [[int(entry.key) for entry in run] for run in found]

    assert runs() == runs(60) == runs(10, 60, 10) == []
    assert runs(10, 10, 60, 10, 10, 10) == [[0, 1], [3, 4, 5]]
    assert runs(40, 40, 40, 40, 40) == [[0, 1], [2, 3]]
