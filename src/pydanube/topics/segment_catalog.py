"""The catalogue of segments in the metadata store; keys as docs/formats/segment.md has them."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from typing_extensions import override

from pydanube.errors import Conflict
from pydanube.metadata import keys
from pydanube.metadata.store import Delete, Entry, Expect, MetadataStore, Operation, Put
from pydanube.model.ids import Offset, TopicId
from pydanube.storage.segments.catalog import (
    Frontier,
    Retired,
    SegmentCatalog,
    SegmentEntry,
    after_add,
    after_expiry,
    after_replace,
    claimed,
    directory_of,
)
from pydanube.storage.segments.encoding import SegmentOrigin

_OPERATIONS_AT_ONCE = 400


class MetadataSegmentCatalog(SegmentCatalog):
    """Every change expects the topic's frontier as it was read: of two writers one fails."""

    def __init__(self, store: MetadataStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix.rstrip("/")

    @override
    def frontier(self, topic: str, topic_id: TopicId) -> Frontier | None:
        frontier, _ = self._read_frontier(topic)
        return frontier if frontier is not None and frontier.topic_id == topic_id else None

    @override
    def entries(self, topic: str, topic_id: TopicId) -> list[SegmentEntry]:
        found = [_entry(each) for each in self._store.list(keys.segments(self._prefix, topic))]
        return [entry for entry in found if entry.topic_id == topic_id]

    @override
    async def claim(self, origin: SegmentOrigin) -> None:
        frontier, revision = self._read_frontier(origin.topic)
        changed = claimed(origin, frontier)
        if changed is not None:
            await self._change(origin.topic, revision, changed, [])

    @override
    async def add(self, origin: SegmentOrigin, entry: SegmentEntry) -> None:
        frontier, revision = self._read_frontier(origin.topic)
        changed = after_add(origin, frontier, entry)
        await self._change(origin.topic, revision, changed, [self._put(entry)])

    @override
    async def replace(
        self, origin: SegmentOrigin, run: Sequence[SegmentEntry], by: SegmentEntry, due_ms: int
    ) -> None:
        frontier, revision = self._read_frontier(origin.topic)
        changed = after_replace(origin, frontier, run, by)
        put = self._put(by)
        removals = [each for each in self._removals(run, due_ms) if each.key != put.key]
        operations = [*removals, put]
        await self._change(origin.topic, revision, changed, operations, self._as_read(run))

    @override
    async def expire(
        self, origin: SegmentOrigin, entries: Sequence[SegmentEntry], due_ms: int
    ) -> None:
        # Every part by itself leaves the catalogue as the laws want it.
        for first in range(0, len(entries), _OPERATIONS_AT_ONCE):
            part = entries[first : first + _OPERATIONS_AT_ONCE]
            frontier, revision = self._read_frontier(origin.topic)
            changed = after_expiry(origin, frontier, part)
            operations = self._removals(part, due_ms)
            await self._change(origin.topic, revision, changed, operations, self._as_read(part))

    @override
    async def remove_topic(self, topic: str, topic_id: TopicId, due_ms: int) -> None:
        frontier_key = keys.segment_frontier(self._prefix, topic)
        if self._store.get(frontier_key) is None:
            return
        # The directory first: whatever happens then, its objects will go.
        mark = keys.retired_object(self._prefix, due_ms, directory_of(topic, topic_id))
        await self._store.put(mark, b"null")
        while frontier := self._store.get(frontier_key):
            found = self._store.list(keys.segments(self._prefix, topic))[:_OPERATIONS_AT_ONCE]
            operations: list[Operation] = [Delete(each.key) for each in found]
            if not found:
                operations.append(Delete(frontier_key))
            try:
                # As it was read: an export that was under way may have added one more.
                await self._store.transact([Expect(frontier_key, frontier.revision)], operations)
            except Conflict:
                continue

    async def rebuild(
        self, topic: str, topic_id: TopicId, start: Offset, entries: Sequence[SegmentEntry]
    ) -> None:
        """Make these a topic's entries, contiguous from `start` on, while no broker serves it.

        The frontier comes last, and a crash before leaves what the next recovery plans again.
        """
        wanted = {keys.segment(self._prefix, topic, each.base): each for each in entries}
        found = self._store.list(keys.segments(self._prefix, topic))
        operations: list[Operation] = [Delete(each.key) for each in found if each.key not in wanted]
        operations += [Put(key, _encode(entry)) for key, entry in wanted.items()]
        for first in range(0, len(operations), _OPERATIONS_AT_ONCE):
            part = operations[first : first + _OPERATIONS_AT_ONCE]
            await self._store.transact([], part)
        frontier, _ = self._read_frontier(topic)
        epoch = max([each.epoch for each in entries], default=0)
        if frontier is not None and frontier.topic_id == topic_id:
            epoch = max(epoch, frontier.epoch)
        end = entries[-1].end if entries else start
        changed = Frontier(topic_id=topic_id, start=start, end=end, epoch=epoch)
        await self._store.put(keys.segment_frontier(self._prefix, topic), _encode(changed))

    @override
    def retired(self) -> list[Retired]:
        found = self._store.list(keys.retired_objects(self._prefix))
        return [Retired(*keys.due_and_retired_object(self._prefix, each.key)) for each in found]

    @override
    async def forget(self, retired: Retired) -> None:
        await self._store.delete(keys.retired_object(self._prefix, retired.due_ms, retired.key))

    def _read_frontier(self, topic: str) -> tuple[Frontier | None, int]:
        entry = self._store.get(keys.segment_frontier(self._prefix, topic))
        if entry is None:
            return None, 0
        return msgspec.json.decode(entry.value, type=Frontier), entry.revision

    async def _change(
        self,
        topic: str,
        revision: int,
        frontier: Frontier,
        operations: Sequence[Operation],
        as_read: Sequence[Expect] = (),
    ) -> None:
        key = keys.segment_frontier(self._prefix, topic)
        await self._store.transact(
            [Expect(key, revision), *as_read], [*operations, Put(key, _encode(frontier))]
        )

    def _as_read(self, entries: Sequence[SegmentEntry]) -> list[Expect]:
        """Return the conditions under which these are the entries; Conflict if they are not now."""
        conditions = []
        for entry in entries:
            key = keys.segment(self._prefix, entry.topic, entry.base)
            found = self._store.get(key)
            if found is None or _entry(found) != entry:
                raise Conflict(
                    f"the segment of {entry.topic} that begins at {entry.base} has changed"
                )
            conditions.append(Expect(key, found.revision))
        return conditions

    def _put(self, entry: SegmentEntry) -> Put:
        return Put(keys.segment(self._prefix, entry.topic, entry.base), _encode(entry))

    def _removals(self, entries: Sequence[SegmentEntry], due_ms: int) -> list[Operation]:
        operations: list[Operation] = []
        for entry in entries:
            operations.append(Delete(keys.segment(self._prefix, entry.topic, entry.base)))
            if not entry.is_lost:
                mark = keys.retired_object(self._prefix, due_ms, entry.key)
                operations.append(Put(mark, b"null"))
        return operations


def _entry(entry: Entry) -> SegmentEntry:
    return msgspec.json.decode(entry.value, type=SegmentEntry)


def _encode(record: Struct) -> bytes:
    return msgspec.json.encode(record)
