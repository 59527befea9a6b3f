"""What every object store owes its callers. A subclass brings the fixture `store`."""

import asyncio

import pytest

from pydanube.runtime.randomness import SeededRandomness
from pydanube.storage.errors import ObjectMissing, ObjectTooShort
from pydanube.storage.segments.object_store import ObjectStore, probe_store


class ObjectStoreContract:
    honours_conditions = True

    async def test_what_is_written_is_read_whole_and_in_ranges(self, store: ObjectStore) -> None:
        data = bytes(range(256)) * 40
        await store.put("a/b/c.parquet", data)
        assert await store.read("a/b/c.parquet", 0, len(data)) == data
        assert await store.read("a/b/c.parquet", 1000, 24) == data[1000:1024]
        assert await store.read("a/b/c.parquet", len(data) - 1, 1) == data[-1:]
        assert await store.read("a/b/c.parquet", 5, 0) == b""
        assert await store.size("a/b/c.parquet") == len(data)

    async def test_an_object_of_many_megabytes_is_written_in_one_piece(
        self, store: ObjectStore
    ) -> None:
        data = b"0123456789abcdef" * (1024 * 1024)
        assert await store.put_if_absent("large", data)
        assert await store.size("large") == len(data)
        assert await store.read("large", 9_999_999, 100) == data[9_999_999:10_000_099]

    async def test_a_name_is_taken_once(self, store: ObjectStore) -> None:
        assert await store.put_if_absent("a/b", b"first")
        again = await store.put_if_absent("a/b", b"second")
        assert again is not self.honours_conditions
        if self.honours_conditions:
            assert await store.read("a/b", 0, 5) == b"first"

    async def test_of_many_writers_of_one_name_one_succeeds(self, store: ObjectStore) -> None:
        if not self.honours_conditions:
            return
        written = await asyncio.gather(*(store.put_if_absent("a/b", b"%d" % n) for n in range(5)))
        assert written.count(True) == 1
        assert await store.read("a/b", 0, 1) == b"%d" % written.index(True)

    async def test_what_is_absent_is_missing(self, store: ObjectStore) -> None:
        assert await store.size("a/b") is None
        with pytest.raises(ObjectMissing):
            await store.read("a/b", 0, 1)

    async def test_what_is_too_short_is_damaged(self, store: ObjectStore) -> None:
        await store.put("a/b", b"12345")
        for position, length in ((0, 6), (3, 3), (5, 1), (100, 1)):
            with pytest.raises(ObjectTooShort):
                await store.read("a/b", position, length)

    async def test_a_list_names_what_lies_directly_below(self, store: ObjectStore) -> None:
        for key in ("a/b/2", "a/b/10", "a/b/c/1", "a/bc", "a/b.x"):
            await store.put(key, b"x")
        assert await store.list("a/b/") in (["a/b/10", "a/b/2"], ["a/b/10", "a/b/2", "a/b/c"])
        assert await store.list("nothing/") == []

    async def test_a_list_of_more_than_a_page_is_whole(self, store: ObjectStore) -> None:
        keys = [f"many/{number:04}" for number in range(1_050)]
        for first in range(0, len(keys), 50):
            await asyncio.gather(*(store.put(key, b"x") for key in keys[first : first + 50]))
        assert await store.list("many/") == keys

    async def test_deleting_can_be_repeated(self, store: ObjectStore) -> None:
        await store.put("a/b", b"x")
        await store.delete("a/b")
        assert await store.size("a/b") is None
        assert await store.list("a/") == []
        await store.delete("a/b")
        assert await store.put_if_absent("a/b", b"y")

    async def test_the_probe_tells_whether_conditions_are_honoured(
        self, store: ObjectStore
    ) -> None:
        abilities = await probe_store(store, SeededRandomness(1))
        assert abilities.conditional_writes is self.honours_conditions
        assert await store.list(".danube/") == []
