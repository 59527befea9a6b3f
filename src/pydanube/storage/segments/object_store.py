"""Where segments are kept, as the rest of this room may know it, and the test of a store's word."""

from contextlib import suppress
from typing import Protocol

from msgspec import Struct

from pydanube.errors import Corruption
from pydanube.runtime.randomness import Randomness
from pydanube.storage.errors import StoreFailed

PROBE_DIRECTORY = ".danube/"


class ObjectStore(Protocol):
    """Objects by key. Keys are relative paths such as default/orders/7/name.parquet.

    An object appears whole or not at all. Failures are StoreFailed: what was asked for may have
    happened all the same, now or later. So names are used once, and whoever repeats a call must
    not mind that the first one succeeded.
    """

    provider: str
    """One word for metrics, such as local or s3."""

    @property
    def description(self) -> str:
        """What and where it is, for people."""

    async def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object durably and return True, or return False if the name is taken.

        Some stores do not honour the condition; `probe_store` tells.
        """

    async def put(self, key: str, data: bytes) -> None:
        """Write an object durably, replacing what had the name."""

    async def read(self, key: str, position: int, length: int) -> bytes:
        """Return exactly these bytes; ObjectMissing, or ObjectTooShort if it ends before."""

    async def size(self, key: str) -> int | None:
        """Return an object's length, None if it does not exist."""

    async def list(self, directory: str) -> list[str]:
        """Return the keys directly below a directory, which ends in "/", sorted.

        The list may be a little old.
        """

    async def directories(self, directory: str) -> tuple[str, ...]:
        """Return the names of the directories directly below one, or below the root for "".

        For recovery, which looks for what no catalogue names; it may hold up everything else.
        """

    async def delete(self, key: str) -> None:
        """Remove an object; harmless when it is absent."""

    async def close(self) -> None:
        """Let go of threads and connections."""


class StoreAbilities(Struct, frozen=True):
    """What a store was seen to do."""

    conditional_writes: bool


async def probe_store(store: ObjectStore, randomness: Randomness) -> StoreAbilities:
    """Write, write conditionally, read, list and delete an object, before the store is relied on.

    Raises StoreFailed when the store refuses, and Corruption when it answers something else than
    it was given. What a service says about itself is not asked: only what it does counts.
    """
    key = f"{PROBE_DIRECTORY}probe-{randomness.below(1 << 64):016x}"
    first, second = b"first " + key.encode(), b"second " + key.encode()
    if not await store.put_if_absent(key, first):
        raise _wrong(store, "it says that a new name is taken")
    try:
        if await store.read(key, 0, len(first)) != first:
            raise _wrong(store, "it returns other bytes than were written")
        if await store.read(key, 3, 5) != first[3:8]:
            raise _wrong(store, "it returns other bytes than a range asks for")
        conditional = not await store.put_if_absent(key, second)
        kept = first if conditional else second
        if await store.size(key) != len(kept):
            raise _wrong(store, "it tells a wrong size")
        if await store.read(key, 0, len(kept)) != kept:
            raise _wrong(store, "it replaced an object that it said it would keep")
        await store.list(PROBE_DIRECTORY)
    except BaseException:
        with suppress(StoreFailed):  # Or it would hide what came first, a cancellation too.
            await store.delete(key)
        raise
    await store.delete(key)
    if await store.size(key) is not None:
        raise _wrong(store, "it keeps what was deleted")
    return StoreAbilities(conditional_writes=conditional)


def _wrong(store: ObjectStore, what: str) -> Corruption:
    return Corruption(f"{store.description} cannot keep segments: {what}")
