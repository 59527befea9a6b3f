import pytest
from msgspec import structs

from pydanube.errors import Conflict, Unavailable
from pydanube.metadata.memory_store import MemoryMetadataStore
from pydanube.model.ids import Offset, TopicId
from pydanube.runtime.clock import SystemClock
from pydanube.storage.segments.catalog import lost_entry
from pydanube.storage.segments.encoding import SegmentOrigin
from pydanube.storage.segments.topic_segments import TopicSegments
from pydanube.topics.segment_catalog import MetadataSegmentCatalog

ORIGIN = SegmentOrigin(topic="/default/t", topic_id=TopicId(7), epoch=0)


def entry(base: int, end: int, created_ms: int = 0):
    return lost_entry(ORIGIN, Offset(base), Offset(end), created_ms)


@pytest.fixture
async def catalog():
    store = MemoryMetadataStore(SystemClock())
    yield MetadataSegmentCatalog(store, "/danube")
    await store.close()


async def test_a_topic_without_segments_begins_with_none(catalog) -> None:
    segments = TopicSegments(ORIGIN, catalog)
    assert (segments.exists, segments.start, segments.end) == (False, 0, 0)
    assert segments.find(Offset(0)) is None


async def test_entries_are_found_by_any_of_their_offsets(catalog) -> None:
    segments = TopicSegments(ORIGIN, catalog)
    for base, end in ((5, 10), (10, 11), (11, 30)):
        await segments.add(entry(base, end))
    assert (segments.start, segments.end) == (5, 30)
    again = TopicSegments(ORIGIN, catalog)
    for known in (segments, again):
        found = [known.find(Offset(offset)) for offset in (4, 5, 9, 10, 11, 29, 30)]
        assert [f.base if f else None for f in found] == [None, 5, 5, 10, 11, 11, None]


async def test_an_add_that_happened_without_saying_so_is_found(catalog) -> None:
    segments = TopicSegments(ORIGIN, catalog)
    await catalog.add(ORIGIN, entry(0, 10))
    await segments.add(entry(0, 10))
    assert (segments.end, len(segments.entries())) == (10, 1)


async def test_an_add_that_lost_against_another_is_refused(catalog) -> None:
    segments = TopicSegments(ORIGIN, catalog)
    await catalog.add(ORIGIN, entry(0, 10, created_ms=5))
    with pytest.raises(Conflict):
        await segments.add(entry(0, 10, created_ms=6))
    assert segments.end == 10, "it has looked what is there"


async def test_expiry_moves_the_start(catalog) -> None:
    segments = TopicSegments(ORIGIN, catalog)
    for base in (0, 10, 20):
        await segments.add(entry(base, base + 10))
    await segments.expire(segments.entries()[:2], due_ms=0)
    assert (segments.start, segments.end) == (20, 30)
    assert [e.base for e in segments.entries()] == [20]


async def test_after_a_failure_the_catalogue_is_read_again(catalog) -> None:
    class Silent(MetadataSegmentCatalog):
        async def expire(self, origin, entries, due_ms) -> None:
            await super().expire(origin, entries, due_ms)
            raise Unavailable("the answer is lost")

    segments = TopicSegments(ORIGIN, Silent(catalog._store, "/danube"))
    for base in (0, 10):
        await segments.add(structs.replace(entry(base, base + 10)))
    with pytest.raises(Unavailable):
        await segments.expire(segments.entries()[:1], due_ms=0)
    assert segments.start == 10
