"""What every backend of the metadata store promises."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from pydanube.errors import Conflict, InvalidRequest, NotFound, NotSupported, Unavailable
from pydanube.metadata.store import Change, Delete, Entry, Expect, MetadataStore, Put
from pydanube.metadata.watches import WatchLimits
from pydanube.runtime.simulation.clock import SimulatedClock
from tests.support.metadata_backends import Backend, in_virtual_time, on_every_backend


async def read(watch: AsyncIterator[Change], count: int) -> list[Change]:
    async with asyncio.timeout(10):
        return [await anext(watch) for _ in range(count)]


async def says_nothing(watch: AsyncIterator[Change], backend: Backend) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(backend.quiet_seconds):
            await anext(watch)
        return False
    return True


def keys_below(store: MetadataStore, prefix: str) -> list[str]:
    return [entry.key for entry in store.list(prefix)]


@on_every_backend
async def test_a_new_store_is_empty(backend: Backend):
    store = await backend.open()
    assert (store.get("/a"), store.list("/")) == (None, [])
    assert store.revision == 0 or not backend.counts_by_one


@on_every_backend
async def test_every_write_has_the_next_revision_over_all_keys(backend: Backend):
    store = await backend.open()
    revisions = [
        store.revision,
        await store.put("/a", b"1"),
        await store.put("/b", b"2"),
        await store.put("/a", b"3"),
        await store.delete("/b"),
    ]
    backend.assert_ascending(revisions)
    assert store.revision == revisions[4]
    assert store.list("/") == [Entry("/a", b"3", revisions[3])]


@on_every_backend
async def test_deleting_an_absent_key_changes_nothing(backend: Backend):
    store = await backend.open()
    revision = await store.put("/a", b"")
    assert await store.delete("/b") == revision
    assert store.revision == revision


@on_every_backend
async def test_of_racing_swaps_exactly_one_wins_each_round(backend: Backend):
    store = await backend.open()

    async def increment_ten_times() -> int:
        refused = 0
        for _ in range(10):
            while True:
                entry = store.get("/n")
                number, revision = (int(entry.value), entry.revision) if entry else (0, 0)
                try:
                    await store.compare_and_swap("/n", revision, b"%d" % (number + 1))
                    break
                except Conflict:
                    refused += 1
                    # In memory nothing else gives the others their turn.
                    await asyncio.sleep(0)
        return refused

    refusals = await asyncio.gather(*(increment_ten_times() for _ in range(8)))
    entry = store.get("/n")
    assert entry == Entry("/n", b"80", store.revision)
    if backend.durable:
        assert sum(refusals) > 0, "nobody raced"


@on_every_backend
async def test_a_swap_that_expects_an_absent_key_creates_it_once(backend: Backend):
    store = await backend.open()
    attempts = [store.compare_and_swap("/a", 0, b"%d" % number) for number in range(5)]
    results = await asyncio.gather(*attempts, return_exceptions=True)
    winners = [number for number, result in enumerate(results) if isinstance(result, int)]
    assert winners == [0] or (len(winners) == 1 and not backend.keeps_order)
    assert sum(isinstance(result, Conflict) for result in results) == 4
    assert store.get("/a") == Entry("/a", b"%d" % winners[0], store.revision)


@on_every_backend
async def test_a_transaction_happens_wholly_or_not_at_all(backend: Backend):
    store = await backend.open()
    first = await store.put("/a", b"1")
    operations = [Put("/a", b"2"), Delete("/b"), Put("/c", b"3")]
    with pytest.raises(Conflict, match="/b is absent, the request expects it to be at revision 9"):
        await store.transact([Expect("/a", first), Expect("/b", 9)], operations)
    assert store.list("/") == [Entry("/a", b"1", first)]
    second = await store.transact([Expect("/a", first), Expect("/b", 0)], operations)
    backend.assert_ascending([first, second])
    assert store.list("/") == [Entry("/a", b"2", second), Entry("/c", b"3", second)]


@on_every_backend
async def test_a_prefix_never_stands_for_its_longer_neighbours(backend: Backend):
    store = await backend.open()
    watch = store.watch("/topics/default/t1/", store.revision)
    for key in ("t10/policy", "t1/policy", "t1/producers/7", "t1-part-0/policy", "t1"):
        await store.put(f"/topics/default/{key}", b"")
    found = ["/topics/default/t1/policy", "/topics/default/t1/producers/7"]
    assert keys_below(store, "/topics/default/t1/") == found
    assert [change.key for change in await read(watch, 2)] == found
    assert await says_nothing(watch, backend)


@on_every_backend
async def test_a_watch_tells_every_change_once_and_in_order(backend: Backend):
    store = await backend.open()
    watch = store.watch("/a/", store.revision)
    first = await store.put("/a/x", b"1")
    await store.put("/b/x", b"2")
    third = await store.transact([], [Put("/a/y", b"3"), Put("/b/y", b"3"), Delete("/a/x")])
    await store.delete("/a/absent")
    fourth = await store.delete("/a/y")
    assert await read(watch, 4) == [
        Change("/a/x", b"1", first),
        Change("/a/y", b"3", third),
        Change("/a/x", None, third),
        Change("/a/y", None, fourth),
    ]
    assert await says_nothing(watch, backend)


@on_every_backend
async def test_a_list_and_a_watch_from_its_revision_have_no_gap(backend: Backend):
    store = await backend.open()
    written: list[int] = []

    async def write() -> None:
        for number in range(200):
            written.append(await store.put(f"/k/{number % 7}", b"%d" % number))

    async def follow() -> dict[str, bytes | None]:
        state: dict[str, bytes | None] = {}
        state.update({entry.key: entry.value for entry in store.list("/k/")})
        revision = store.revision
        # Changes that come between the list and the watch are the ones that must not be missed.
        await backend.clock.sleep(0.01)
        watch = store.watch("/k/", revision)
        told = []
        while state.get("/k/3") != b"199":
            change = await anext(watch)
            told.append(change.revision)
            state[change.key] = change.value
        follower_saw.append((revision, told))
        return state

    follower_saw: list[tuple[int, list[int]]] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        followers = []
        for _ in range(5):
            followers.append(group.create_task(follow()))
            await backend.clock.sleep(0.01)
    expected = {entry.key: entry.value for entry in store.list("/k/")}
    assert [follower.result() for follower in followers] == [expected] * 5
    backend.assert_ascending(written)
    for revision, told in follower_saw:
        assert told == [one for one in written if one > revision]


@on_every_backend
async def test_a_watch_may_begin_at_any_revision_that_is_still_held(backend: Backend):
    store = await backend.open(WatchLimits(history_changes_max=3))
    revisions = [await store.put("/a", b"%d" % number) for number in range(1, 6)]
    watch = store.watch("/", revisions[1])
    assert [change.value for change in await read(watch, 3)] == [b"3", b"4", b"5"]
    with pytest.raises(Conflict, match="list again and watch from there"):
        await anext(store.watch("/", revisions[0]))


@on_every_backend
async def test_a_transaction_leaves_the_history_as_a_whole(backend: Backend):
    store = await backend.open(WatchLimits(history_changes_max=3))
    before = store.revision
    first = await store.transact([], [Put("/a", b""), Put("/b", b"")])
    await store.transact([], [Put("/c", b""), Put("/d", b"")])
    with pytest.raises(Conflict):
        await anext(store.watch("/", before))
    assert [change.key for change in await read(store.watch("/", first), 2)] == ["/c", "/d"]


@on_every_backend
async def test_a_watch_may_begin_in_the_future(backend: Backend):
    store = await backend.open()
    watch = store.watch("/", store.revision + 2)
    revisions = [await store.put("/a", b"%d" % number) for number in range(1, 4)]
    assert await read(watch, 1) == [Change("/a", b"3", revisions[2])]


@on_every_backend
async def test_a_slow_watch_ends_with_a_conflict_and_harms_nobody(backend: Backend):
    store = await backend.open(WatchLimits(queue_changes_max=3))
    before = store.revision
    slow, elsewhere = store.watch("/", before), store.watch("/b/", before)
    prompt = store.watch("/", before)
    for number in range(4):
        await store.put("/a", b"%d" % number)
        assert [change.value for change in await read(prompt, 1)] == [b"%d" % number]
    with pytest.raises(Conflict, match="list again and watch from there"):
        await anext(slow)
    await store.put("/b/x", b"")
    assert [change.key for change in await read(elsewhere, 1)] == ["/b/x"]
    assert [change.key for change in await read(prompt, 1)] == ["/b/x"]


@on_every_backend
async def test_a_watch_that_keeps_up_survives_a_transaction_larger_than_its_queue(
    backend: Backend,
):
    store = await backend.open(WatchLimits(queue_changes_max=2, history_changes_max=2))
    before = store.revision
    watch = store.watch("/", before)
    await store.transact([], [Put(f"/{number}", b"") for number in range(5)])
    assert len(await read(watch, 5)) == 5
    assert len(await read(store.watch("/", before), 5)) == 5


@on_every_backend
async def test_numbers_count_up_by_counter_and_never_repeat(backend: Backend):
    store = await backend.open()
    before = store.revision
    numbers = await asyncio.gather(*(store.next_id("/counters/a") for _ in range(50)))
    assert sorted(numbers) == list(range(1, 51))
    assert await store.next_id("/counters/b") == 1
    assert (store.revision, store.get("/counters/a")) == (before, None)


@in_virtual_time
async def test_a_leap_goes_on_behind_what_was_given_before(backend: Backend):
    store = await backend.open()
    await store.next_id("/counters/a")
    await store.leap(0, {"/counters/a": 40, "/counters/b": 7})
    assert await store.next_id("/counters/a") >= 41
    assert await store.next_id("/counters/b") >= 8
    await store.leap(0, {"/counters/a": 3})
    assert await store.next_id("/counters/a") >= 42, "what is beyond stays"
    watch = store.watch("/", store.revision)
    present = await store.put("/before", b"1")
    if backend.counts_by_one:
        await store.leap(present + 1_000, {})
        assert await store.put("/after", b"2") == present + 1_001
        assert [(await anext(watch)).key for _ in range(2)] == ["/before", "/after"]
    else:
        with pytest.raises(NotSupported, match="bump-revision"):
            await store.leap(present + 1_000_000, {})


@in_virtual_time
async def test_an_expired_lease_deletes_its_keys_and_tells_the_watches(backend: Backend):
    store = await backend.open()
    lease = await store.grant_lease(1_000)
    await store.put("/a", b"1", lease=lease)
    await store.put("/b", b"2")
    watch = store.watch("/", store.revision)
    await backend.clock.sleep(0.9)
    assert keys_below(store, "/") == ["/a", "/b"]
    assert await read(watch, 1) == [Change("/a", None, 3)]
    assert keys_below(store, "/") == ["/b"]
    with pytest.raises(NotFound):
        await store.renew_lease(lease)
    with pytest.raises(NotFound):
        await store.put("/a", b"1", lease=lease)


@in_virtual_time
async def test_a_renewed_lease_lives_on_and_ends_when_renewals_do(backend: Backend):
    store = await backend.open()
    lease = await store.grant_lease(1_000)
    await store.put("/a", b"1", lease=lease)
    for _ in range(5):
        await backend.clock.sleep(0.7)
        await store.renew_lease(lease)
    await backend.clock.sleep(0.9)
    assert keys_below(store, "/") == ["/a"]
    await backend.clock.sleep(0.2)
    assert keys_below(store, "/") == []


@in_virtual_time
async def test_leases_end_each_at_its_own_time(backend: Backend):
    store = await backend.open()
    for seconds in (3, 1, 2):
        lease = await store.grant_lease(seconds * 1_000)
        await store.put(f"/{seconds}", b"", lease=lease)
    for left in (["/2", "/3"], ["/3"], []):
        await backend.clock.sleep(1.02)
        assert keys_below(store, "/") == left


@on_every_backend
async def test_a_revoked_lease_deletes_its_keys_at_once(backend: Backend):
    store = await backend.open()
    lease = await store.grant_lease(1_000)
    await store.put("/a", b"1", lease=lease)
    await store.revoke_lease(lease)
    assert keys_below(store, "/") == []
    with pytest.raises(NotFound):
        await store.revoke_lease(lease)


@in_virtual_time
async def test_a_plain_write_frees_a_key_from_its_lease(backend: Backend):
    store = await backend.open()
    lease = await store.grant_lease(1_000)
    await store.put("/a", b"1", lease=lease)
    await store.put("/b", b"1", lease=lease)
    await store.put("/a", b"2")
    await backend.clock.sleep(2)
    assert keys_below(store, "/") == ["/a"]


@in_virtual_time
async def test_a_jump_of_the_wall_clock_ends_no_lease(backend: Backend):
    store = await backend.open()
    assert isinstance(backend.clock, SimulatedClock)
    lease = await store.grant_lease(1_000)
    await store.put("/a", b"1", lease=lease)
    backend.clock.jump(3_600_000)
    await backend.clock.sleep(0.5)
    await store.renew_lease(lease)
    backend.clock.jump(-7_200_000)
    await backend.clock.sleep(0.9)
    assert keys_below(store, "/") == ["/a"]
    await backend.clock.sleep(0.2)
    assert keys_below(store, "/") == []


@on_every_backend
async def test_malformed_keys_are_refused_everywhere(backend: Backend):
    store = await backend.open()
    before = store.revision
    for key in ("", "/", "a", "/a/", "/a//b"):
        for attempt in (
            store.put(key, b""),
            store.delete(key),
            store.compare_and_swap(key, 0, b""),
            store.transact([Expect(key, 0)], []),
            store.next_id(key),
        ):
            with pytest.raises(InvalidRequest):
                await attempt
        with pytest.raises(InvalidRequest):
            store.get(key)
    for prefix in ("", "a/", "/a", "/a//"):
        with pytest.raises(InvalidRequest):
            store.list(prefix)
        with pytest.raises(InvalidRequest):
            await anext(store.watch(prefix, 0))
    assert store.revision == before


@on_every_backend
async def test_a_closed_store_refuses_writes_and_ends_its_watches(backend: Backend):
    store = await backend.open()
    before = store.revision
    await store.put("/a", b"")
    watch, waiting = store.watch("/", before), store.watch("/b/", before)
    ending = asyncio.create_task(anext(waiting, None))
    await store.close()
    assert [change.key async for change in watch] == ["/a"]
    assert await ending is None
    with pytest.raises(Unavailable):
        await store.put("/a", b"")
    await store.close()


@on_every_backend
async def test_closing_finishes_the_writes_that_were_begun(backend: Backend):
    store = await backend.open()
    writes = [asyncio.create_task(store.put(f"/{number}", b"")) for number in range(20)]
    await asyncio.sleep(0)
    await store.close()
    revisions = await asyncio.gather(*writes)
    backend.assert_ascending(revisions if backend.keeps_order else sorted(revisions))


@on_every_backend
async def test_a_durable_store_opened_again_is_as_it_was(backend: Backend):
    if not backend.durable:
        return
    leases: list[int] = []
    for round_ in range(1, 6):
        store = await backend.open()
        assert await store.next_id("/ids") == round_
        leases.append(await store.grant_lease(3_600_000))
        before = store.revision
        revision = await store.put(f"/{round_}", b"x" * round_, lease=leases[-1])
        backend.assert_ascending([before, revision])
        assert keys_below(store, "/") == [f"/{number}" for number in range(1, round_ + 1)]
        await store.close()
    store = await backend.open()
    assert len(set(leases)) == 5
    await store.revoke_lease(leases[2])
    assert keys_below(store, "/") == ["/1", "/2", "/4", "/5"]


@in_virtual_time
async def test_a_lease_that_ended_while_the_store_was_closed_ends_when_it_opens(backend: Backend):
    if not backend.durable:
        return
    store = await backend.open()
    for ttl_ms in (1_000, 60_000):
        await store.put(f"/{ttl_ms}", b"", lease=await store.grant_lease(ttl_ms))
    await store.close()
    await backend.clock.sleep(10)
    store = await backend.open()
    assert await read(store.watch("/", 2), 1) == [Change("/1000", None, 3)]
    assert keys_below(store, "/") == ["/60000"]
