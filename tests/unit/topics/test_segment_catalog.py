import pytest
from msgspec import structs

from pydanube.errors import Conflict
from pydanube.metadata import keys
from pydanube.metadata.memory_store import MemoryMetadataStore
from pydanube.model.ids import Offset, TopicId
from pydanube.runtime.clock import SystemClock
from pydanube.storage.errors import Fenced
from pydanube.storage.segments.catalog import (
    Retired,
    SegmentEntry,
    epoch_of,
    lost_entry,
    object_key,
)
from pydanube.storage.segments.encoding import SegmentOrigin
from pydanube.topics.segment_catalog import MetadataSegmentCatalog

ORDERS = SegmentOrigin(topic="/default/orders", topic_id=TopicId(7), epoch=0)


@pytest.fixture
async def store():
    store = MemoryMetadataStore(SystemClock())
    yield store
    await store.close()


@pytest.fixture
def catalog(store) -> MetadataSegmentCatalog:
    return MetadataSegmentCatalog(store, "/danube")


def entry(base: int, end: int, origin: SegmentOrigin = ORDERS) -> SegmentEntry:
    return SegmentEntry(
        key=object_key(origin, Offset(base), Offset(end), 5),
        topic=origin.topic,
        topic_id=origin.topic_id,
        base=Offset(base),
        end=Offset(end),
        rows=end - base,
        bytes=100,
        raw_bytes=200,
        crc32c=1,
        min_time_ms=1,
        max_time_ms=2,
        epoch=origin.epoch,
        schema_ids=(2**64 - 1,),
        created_ms=3,
    )


def listed(catalog, origin: SegmentOrigin = ORDERS) -> list[tuple[int, int]]:
    return [(e.base, e.end) for e in catalog.entries(origin.topic, origin.topic_id)]


def reach(catalog, origin: SegmentOrigin = ORDERS) -> tuple[int, int, int] | None:
    found = catalog.frontier(origin.topic, origin.topic_id)
    return None if found is None else (found.start, found.end, found.epoch)


async def filled(catalog, *ends: int) -> list[SegmentEntry]:
    base = 0
    entries = []
    for end in ends:
        entries.append(entry(base, end))
        await catalog.add(ORDERS, entries[-1])
        base = end
    return entries


def test_names_sort_by_offset_and_tell_their_epoch() -> None:
    key = object_key(structs.replace(ORDERS, epoch=12), Offset(5), Offset(10), 0xABC)
    assert key == (
        "default/orders/7/00000000000000000005-00000000000000000010-12-0000000000000abc.parquet"
    )
    assert epoch_of(key) == 12
    assert epoch_of("default/orders/7/something.tmp") is None


async def test_entries_follow_each_other_without_a_gap(catalog) -> None:
    assert (reach(catalog), listed(catalog)) == (None, [])
    await filled(catalog, 10, 11, 30)
    assert listed(catalog) == [(0, 10), (10, 11), (11, 30)]
    assert reach(catalog) == (0, 30, 0)
    for wrong in (entry(31, 32), entry(29, 32), entry(0, 10)):
        with pytest.raises(Conflict, match="cannot follow"):
            await catalog.add(ORDERS, wrong)
    assert reach(catalog) == (0, 30, 0)


async def test_the_first_entry_may_begin_anywhere(catalog) -> None:
    await catalog.add(ORDERS, entry(1000, 1001))
    assert reach(catalog) == (1000, 1001, 0)


async def test_an_entry_comes_back_as_it_was_written(catalog) -> None:
    [written] = await filled(catalog, 10)
    assert catalog.entries("/default/orders", TopicId(7)) == [written]


@pytest.mark.parametrize(
    "wrong",
    [
        structs.replace(entry(0, 10), rows=9),
        structs.replace(entry(0, 10), end=Offset(0), rows=0),
        structs.replace(entry(0, 10), topic="/default/other"),
        structs.replace(entry(0, 10), topic_id=TopicId(8)),
    ],
)
async def test_an_entry_that_contradicts_itself_is_refused(catalog, wrong) -> None:
    with pytest.raises(Conflict):
        await catalog.add(ORDERS, wrong)
    assert reach(catalog) is None


async def test_lost_offsets_have_an_entry_without_rows(catalog) -> None:
    await filled(catalog, 10)
    await catalog.add(ORDERS, lost_entry(ORDERS, Offset(10), Offset(15), 0))
    await catalog.add(ORDERS, entry(15, 20))
    assert listed(catalog) == [(0, 10), (10, 15), (15, 20)]


async def test_an_older_owner_is_refused_as_soon_as_the_new_one_has_claimed(catalog) -> None:
    later = structs.replace(ORDERS, epoch=3)
    [first] = await filled(catalog, 10)
    await catalog.claim(later)
    assert reach(catalog) == (0, 10, 3)
    with pytest.raises(Fenced):
        await catalog.add(ORDERS, entry(10, 20))
    with pytest.raises(Fenced):
        await catalog.expire(ORDERS, [first], 0)
    with pytest.raises(Fenced):
        await catalog.replace(ORDERS, [first], entry(0, 10), 0)
    with pytest.raises(Fenced):
        await catalog.claim(structs.replace(ORDERS, epoch=2))
    await catalog.add(later, entry(10, 20, later))
    assert reach(catalog) == (0, 20, 3)


async def test_a_claim_of_a_topic_without_segments_is_remembered(catalog) -> None:
    await catalog.claim(structs.replace(ORDERS, epoch=3))
    with pytest.raises(Fenced):
        await catalog.add(ORDERS, entry(0, 10))
    await catalog.add(structs.replace(ORDERS, epoch=3), entry(5, 10))
    assert reach(catalog) == (5, 10, 3)


async def test_of_two_writers_that_read_the_same_one_fails(catalog, store) -> None:
    await filled(catalog, 10)
    slow = MetadataSegmentCatalog(_Stale(store), "/danube")
    await catalog.add(ORDERS, entry(10, 20))
    with pytest.raises(Conflict):
        await slow.add(ORDERS, entry(10, 30))
    assert listed(catalog) == [(0, 10), (10, 20)]


class _Stale:
    """A store whose reads are as old as this object."""

    def __init__(self, store) -> None:
        self._store = store
        self._then = {each.key: each for each in store.list("/")}

    def get(self, key):
        return self._then.get(key)

    async def transact(self, conditions, operations):
        return await self._store.transact(conditions, operations)


async def test_a_run_is_replaced_by_what_holds_the_same(catalog) -> None:
    entries = await filled(catalog, 10, 20, 30)
    merged = structs.replace(entry(0, 20), key="default/orders/7/merged")
    await catalog.replace(ORDERS, entries[:2], merged, due_ms=500)
    assert listed(catalog) == [(0, 20), (20, 30)]
    assert catalog.retired() == [Retired(500, e.key) for e in entries[:2]]
    assert reach(catalog) == (0, 30, 0)


@pytest.mark.parametrize(
    ("first", "last", "base", "end"), [(0, 2, 0, 19), (0, 2, 0, 30), (1, 3, 0, 30), (0, 3, 0, 20)]
)
async def test_nothing_else_replaces_a_run(catalog, first, last, base, end) -> None:
    entries = await filled(catalog, 10, 20, 30)
    with pytest.raises(Conflict):
        await catalog.replace(ORDERS, entries[first:last], entry(base, end), 0)
    assert listed(catalog) == [(0, 10), (10, 20), (20, 30)]


async def test_a_run_that_has_changed_meanwhile_is_not_replaced(catalog) -> None:
    entries = await filled(catalog, 10, 20)
    other = structs.replace(entries[0], key="default/orders/7/other")
    with pytest.raises(Conflict, match="has changed"):
        await catalog.replace(ORDERS, [other, entries[1]], entry(0, 20), 0)


async def test_entries_expire_from_the_front_and_the_end_is_remembered(catalog) -> None:
    entries = await filled(catalog, 10, 20, 30)
    with pytest.raises(Conflict, match="oldest"):
        await catalog.expire(ORDERS, entries[1:], 0)
    await catalog.expire(ORDERS, entries[:2], due_ms=9)
    assert (listed(catalog), reach(catalog)) == ([(20, 30)], (20, 30, 0))
    await catalog.expire(ORDERS, entries[2:], due_ms=9)
    assert (listed(catalog), reach(catalog)) == ([], (30, 30, 0))
    assert {r.key for r in catalog.retired()} == {e.key for e in entries}
    await catalog.add(ORDERS, entry(30, 40))
    assert reach(catalog) == (30, 40, 0)


async def test_more_entries_expire_than_fit_into_one_transaction(catalog) -> None:
    entries = await filled(catalog, *range(1, 1003))
    await catalog.expire(ORDERS, entries[:1001], 0)
    assert listed(catalog) == [(1001, 1002)]
    assert len(catalog.retired()) == 1001


async def test_a_deleted_topic_leaves_its_directory_to_be_deleted(catalog, store) -> None:
    await filled(catalog, *range(1, 501))
    await catalog.remove_topic("/default/orders", TopicId(7), due_ms=1)
    await catalog.remove_topic("/default/orders", TopicId(7), due_ms=2)
    assert catalog.retired() == [Retired(1, "default/orders/7/")]
    await catalog.forget(Retired(1, "default/orders/7/"))
    assert catalog.retired() == []
    assert store.list("/") == []


async def test_another_life_of_the_topic_does_not_see_the_segments_of_the_first(catalog) -> None:
    await filled(catalog, 10)
    reborn = structs.replace(ORDERS, topic_id=TopicId(8))
    assert (listed(catalog, reborn), reach(catalog, reborn)) == ([], None)
    with pytest.raises(Conflict, match="deleted"):
        await catalog.add(reborn, entry(0, 5, reborn))


async def test_what_is_retired_comes_in_the_order_in_which_it_is_due(catalog) -> None:
    entries = await filled(catalog, 10, 20)
    await catalog.expire(ORDERS, entries[:1], due_ms=2000)
    await catalog.expire(ORDERS, entries[1:], due_ms=300)
    assert [r.due_ms for r in catalog.retired()] == [300, 2000]


async def test_keys_are_those_of_the_format(catalog, store) -> None:
    await filled(catalog, 10)
    assert [each.key for each in store.list("/")] == [
        "/danube/storage/topics/default/orders/frontier",
        "/danube/storage/topics/default/orders/segments/00000000000000000000",
    ]
    key = keys.retired_object("/danube", 7, "a/b c/")
    assert keys.due_and_retired_object("/danube", key) == (7, "a/b c/")
