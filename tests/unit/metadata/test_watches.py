import asyncio
import gc

import pytest

from pydanube.errors import Conflict, InvalidRequest, Unavailable
from pydanube.metadata.store import Change
from pydanube.metadata.watches import Watches, WatchLimits


def change(revision: int, key: str = "/a", size: int = 0) -> Change:
    return Change(key, b"x" * size, revision)


async def test_history_and_queues_are_bounded_in_bytes_too():
    watches = Watches(0, WatchLimits(history_bytes_max=100, queue_bytes_max=200))
    slow = watches.watch("/", 0)
    for revision in range(1, 6):
        watches.publish([change(revision, size=48)])
    with pytest.raises(Conflict):
        watches.watch("/", 2)
    assert (await anext(watches.watch("/", 3))).revision == 4
    with pytest.raises(Conflict, match="5 changes were waiting"):
        await anext(slow)


async def test_a_watch_that_fell_behind_has_told_whole_revisions_only():
    watches = Watches(0, WatchLimits(queue_changes_max=3))
    watch = watches.watch("/", 0)
    watches.publish([change(1, "/a"), change(1, "/b")])
    assert (await anext(watch)).key == "/a"
    for revision in range(2, 7):
        watches.publish([change(revision)])
    assert (await anext(watch)).key == "/b"
    with pytest.raises(Conflict):
        await anext(watch)
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_a_dropped_watch_costs_nothing():
    watches = Watches(0, WatchLimits())
    kept = watches.watch("/", 0)
    for _ in range(10):
        watches.watch("/", 0)
    gc.collect()
    assert len(watches._watches) == 1
    watches.publish([change(1)])
    assert (await anext(kept)).revision == 1


async def test_a_cancelled_reader_loses_no_change():
    watches = Watches(0, WatchLimits())
    watch = watches.watch("/", 0)
    reader = asyncio.create_task(anext(watch))
    await asyncio.sleep(0)
    reader.cancel()
    watches.publish([change(1)])
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert (await anext(watch)).revision == 1


async def test_a_replaced_state_sends_every_watch_to_list_again():
    watches = Watches(0, WatchLimits())
    watch = watches.watch("/", 0)
    watches.publish([change(1)])
    watches.compact(50)
    with pytest.raises(Conflict, match="snapshot"):
        await anext(watch)
    with pytest.raises(Conflict):
        watches.watch("/", 49)
    watch = watches.watch("/", 50)
    watches.publish([change(51)])
    assert (await anext(watch)).revision == 51


async def test_a_watch_begun_after_the_end_tells_what_is_held_and_ends():
    watches = Watches(0, WatchLimits())
    watches.publish([change(1)])
    watches.end(Unavailable("the disk is ill"))
    watch = watches.watch("/", 0)
    assert (await anext(watch)).revision == 1
    with pytest.raises(Unavailable, match="the disk is ill"):
        await anext(watch)


async def test_a_watch_cannot_begin_before_the_first_revision():
    with pytest.raises(InvalidRequest):
        Watches(0, WatchLimits()).watch("/", -1)
