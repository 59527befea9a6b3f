"""The metadata of a cluster that has an etcd: agreed on there, mirrored here."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import groupby
from typing import Self

from typing_extensions import override

from pydanube.errors import (
    Conflict,
    Corruption,
    DanubeError,
    NotSupported,
    Overloaded,
    Unavailable,
)
from pydanube.metadata import keys
from pydanube.metadata.commands import (
    GrantLease,
    NextId,
    Transact,
    check_command,
    check_key,
    check_prefix,
)
from pydanube.metadata.etcd_layout import EtcdLayout
from pydanube.metadata.machine_store import describe_revision
from pydanube.metadata.mirror import Mirror
from pydanube.metadata.store import Change, Delete, Entry, Expect, MetadataStore, Operation, Put
from pydanube.metadata.watches import Watches, WatchLimits
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.etcd.client import EtcdClient
from pydanube.wire.etcd.messages import News, Write

OPEN_SECONDS = 30.0
AGAIN_SECONDS_MIN = 0.1
AGAIN_SECONDS_MAX = 2.0
CATCH_UP_SECONDS = 10.0
WRITES_MAX = 10_000
_LEAP_STEPS_MAX = 10_000
"""etcd counts one by one."""

_log = get_logger(__name__)


class EtcdMetadataStore(MetadataStore):
    """Writes go to etcd; reads come from a copy of all keys that one watch keeps in step.

    A write returns once etcd has it and the copy shows it. Revisions are etcd's own: they ascend,
    with gaps. Leases are etcd's: their time is rounded up to seconds, and they end up to a second
    late. A write that ends in Unavailable may have happened, unless the text says that nothing was
    done; it is never repeated. While etcd is not reached, reads go on with what the copy holds.
    When the history it tells is not the one this store knows, as after a restore from a backup,
    the store stops: see `failure`.
    """

    def __init__(
        self, client: EtcdClient, clock: Clock, layout: EtcdLayout, limits: WatchLimits
    ) -> None:
        self._client = client
        self._clock = clock
        self._layout = layout
        self._mirror = Mirror()
        self._limits = limits
        self._watches = Watches(0, limits)
        self._identity = b""
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._due: list[tuple[int, int, asyncio.Future[None]]] = []
        """A heap: the revision waited for, a number that orders equals, and who waits."""
        self._waits = 0
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._following: TaskScope
        self._failure: Unavailable | None = None
        self._trouble: str | None = None

    @classmethod
    async def open(
        cls,
        client: EtcdClient,
        clock: Clock,
        layout: EtcdLayout,
        *,
        identity: bytes,
        founds: bool = True,
        watch_limits: WatchLimits | None = None,
        open_seconds: float = OPEN_SECONDS,
    ) -> Self:
        """Read everything and follow; `identity` names a cluster that is new, and no other.

        Unavailable if etcd is not reached in that time, Corruption if it holds no cluster and
        none is to be founded.
        """
        store = cls(client, clock, layout, watch_limits or WatchLimits())
        deadline_ms = clock.monotonic_ms() + int(open_seconds * 1000)
        while True:
            try:
                await store._begin(identity if founds else None)
                break
            except Unavailable as error:
                if clock.monotonic_ms() >= deadline_ms:
                    await client.close()
                    raise Unavailable(f"the metadata in etcd are not reached: {error}") from error
                _log.warning("etcd is not reached yet", cause=str(error))
                await clock.sleep(AGAIN_SECONDS_MAX / 2)
            except BaseException:
                await client.close()
                raise
        store._following = TaskScope(store._follow_failed)
        store._following.start(store._follow(), "metadata from etcd")
        return store

    async def _begin(self, identity: bytes | None) -> None:
        key = self._layout.identity
        if identity is not None:
            await self._client.transact([(key, 0)], [Write(key, identity)])
        found, _ = await self._client.read(key)
        if found is None:
            raise Corruption(
                f"etcd has no {key.decode()}, so that it is not the one that holds this broker's "
                "cluster, or was emptied: restore it, or give the broker an empty data directory"
            )
        self._identity = found.value
        await self._read_all()
        self._watches = Watches(self._mirror.revision, self._limits)

    async def _read_all(self) -> None:
        page = await self._client.read_all(*self._layout.span)
        entries = [self._layout.stored(one) for one in page.entries]
        self._mirror.replace(entries, page.revision)

    # What brokers and operators ask.

    @property
    def identity(self) -> bytes:
        """What names this cluster in etcd, and no other."""
        return self._identity

    @property
    def failure(self) -> Unavailable | None:
        """Why nothing can be done any more, None while all is well; for health checks."""
        return self._failure

    @property
    def waiting_for(self) -> str | None:
        """Nothing: etcd sees to its own disk."""
        return None

    @property
    def trouble(self) -> str | None:
        """Why the copy does not follow right now, None while it does."""
        return self._trouble

    # Reading.

    @property
    @override
    def revision(self) -> int:
        return self._mirror.revision

    @override
    def get(self, key: str) -> Entry | None:
        return self._mirror.get(check_key(key))

    @override
    def list(self, prefix: str) -> list[Entry]:
        return self._mirror.entries_below(check_prefix(prefix))

    @override
    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Change]:
        return self._watches.watch(prefix, after_revision)

    async def read_barrier(self) -> None:
        """Return when reads from here see every write that was acknowledged before the call.

        By a write: etcd counts its changes over all its keys, those of others too, so that its
        revision does not tell how far the copy has to come.
        """
        await self.put(keys.READ_BARRIER, b"")

    # Writing.

    @override
    async def put(self, key: str, value: bytes, *, lease: int | None = None) -> int:
        return await self.transact([], [Put(key, value, lease)])

    @override
    async def delete(self, key: str) -> int:
        return await self.transact([], [Delete(key)])

    @override
    async def compare_and_swap(self, key: str, expected_revision: int, value: bytes) -> int:
        return await self.transact([Expect(key, expected_revision)], [Put(key, value)])

    @override
    async def transact(self, conditions: Sequence[Expect], operations: Sequence[Operation]) -> int:
        check_command(Transact(tuple(conditions), tuple(operations)))
        async with self._writing():
            outcome = await self._client.transact(
                [(self._layout.path(one.key), one.revision) for one in conditions],
                [self._write(one) for one in operations],
            )
            if outcome.found is not None:
                await self._refuse(conditions, outcome.found)
            elif outcome.changed:
                await self._wait_for_revision(outcome.revision)
                return outcome.revision
            else:
                # Somebody else may have deleted these keys a moment ago.
                await self._wait_until(
                    lambda: not any(self._shows(one.key, outcome.revision) for one in operations)
                )
            return self._mirror.revision

    def _write(self, operation: Operation) -> Write:
        key = self._layout.path(operation.key)
        if isinstance(operation, Put):
            return Write(key, operation.value, operation.lease or 0)
        return Write(key, None)

    def _shows(self, key: str, up_to_revision: int) -> bool:
        entry = self._mirror.get(key)
        return entry is not None and entry.revision <= up_to_revision

    async def _refuse(self, conditions: Sequence[Expect], found: Sequence[int]) -> None:
        """Raise Conflict once the copy shows what stood against the transaction."""
        for condition, revision in zip(conditions, found, strict=True):
            if revision != condition.revision:
                await self._wait_until(
                    lambda condition=condition: not self._is_so(condition)  # type: ignore[misc]
                )
                raise Conflict(
                    f"{condition.key} is {describe_revision(revision)}, the request expects it to "
                    f"be {describe_revision(condition.revision)}"
                )
        raise Unavailable("etcd refused a transaction whose conditions held; nothing was done")

    def _is_so(self, condition: Expect) -> bool:
        entry = self._mirror.get(condition.key)
        return (entry.revision if entry else 0) == condition.revision

    @override
    async def next_id(self, counter_key: str) -> int:
        check_command(NextId(counter_key))
        async with self._writing():
            return await self._client.count_further(self._layout.counter(counter_key))

    @override
    async def leap(self, revision: int, counters: Mapping[str, int]) -> None:
        if revision > self._mirror.revision:
            raise NotSupported(
                f"etcd is at revision {self._mirror.revision} and has to go on behind {revision}, "
                "which only etcd can do: restore its snapshot with etcdutl snapshot restore "
                f"--bump-revision {revision} --mark-compacted"
            )
        for key, number in counters.items():
            for _ in range(_LEAP_STEPS_MAX):
                if await self.next_id(key) >= number:
                    break
            else:
                raise Unavailable(f"counter {key} has not reached {number} yet; repeat")

    @override
    async def grant_lease(self, ttl_ms: int) -> int:
        check_command(GrantLease(ttl_ms, 0))
        async with self._writing():
            return await self._client.grant_lease(-(-ttl_ms // 1000))

    @override
    async def renew_lease(self, lease: int) -> None:
        async with self._writing():
            await self._client.renew_lease(lease)

    @override
    async def revoke_lease(self, lease: int) -> None:
        async with self._writing():
            await self._client.revoke_lease(lease)
            await self._wait_until(lambda: not self._mirror.holds_keys_of(lease))

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        if self._failure is not None:
            raise Unavailable(str(self._failure))
        if self._closed:
            raise Unavailable("the metadata store is closed")
        if self._running >= WRITES_MAX:
            raise Overloaded(f"{self._running} metadata writes wait for etcd")
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _wait_for_revision(self, revision: int) -> None:
        """Wait until the copy is as new as that; who writes reads the write here."""
        if self._mirror.revision < revision:
            shown: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waits += 1
            heappush(self._due, (revision, self._waits, shown))
            await self._wait(shown)

    async def _wait_until(self, is_shown: Callable[[], bool]) -> None:
        """Wait until the copy shows what was found."""
        if not is_shown():
            shown: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[shown] = is_shown
            try:
                await self._wait(shown)
            finally:
                del self._waiting[shown]

    async def _wait(self, shown: asyncio.Future[None]) -> None:
        timer = self._clock.call_later(CATCH_UP_SECONDS, lambda: _give_up(shown))
        try:
            await shown
        finally:
            timer.cancel()

    def _tell_waiting(self) -> None:
        while self._due and self._due[0][0] <= self._mirror.revision:
            _settle(heappop(self._due)[2])
        for shown in [one for one, is_shown in self._waiting.items() if is_shown()]:
            _settle(shown)

    # Following.

    async def _follow(self) -> None:
        again_seconds = AGAIN_SECONDS_MIN
        while self._failure is None:
            revision = self._mirror.revision
            try:
                if self._trouble is None or await self._is_same_history():
                    await self._follow_stream()
            except DanubeError as error:
                if self._trouble is None:
                    _log.warning("etcd does not tell changes any more", cause=str(error))
                self._trouble = f"etcd does not tell changes: {error}"
            if self._mirror.revision > revision:
                again_seconds = AGAIN_SECONDS_MIN
            await self._clock.sleep(again_seconds)
            again_seconds = min(again_seconds * 2, AGAIN_SECONDS_MAX)

    async def _follow_stream(self) -> None:
        """Take in what etcd tells, from where the copy stands, until the stream ends."""
        first, end = self._layout.span
        async for told in self._client.watch(first, end, self._mirror.revision + 1):
            if told.compacted_revision:
                await self._begin_anew(told.compacted_revision)
                return
            if told.ended is not None:
                raise Unavailable(told.ended)
            if self._trouble is not None:
                _log.info("etcd tells changes again")
                self._trouble = None
            self._take(told)

    def _take(self, told: News) -> None:
        for revision, group in groupby(told.changes, key=lambda one: one.revision):
            if revision > self._mirror.revision:
                changes = [self._layout.told(one) for one in group]
                self._watches.publish(self._mirror.apply(changes))
        self._tell_waiting()

    async def _begin_anew(self, compacted_revision: int) -> None:
        """Read everything, as changes since have been compacted away: watches list again."""
        _log.warning("etcd has forgotten changes not told yet", up_to=compacted_revision)
        if await self._is_same_history():
            await self._read_all()
            self._watches.compact(self._mirror.revision)
            self._tell_waiting()

    async def _is_same_history(self) -> bool:
        """Stop if etcd was emptied, or restored to the past: its revisions mean something else."""
        found, revision = await self._client.read(self._layout.identity)
        if found is None or found.value != self._identity:
            self._stop("etcd does not hold this cluster any more")
        elif revision < self._mirror.revision:
            self._stop(
                f"etcd went back from revision {self._mirror.revision} to {revision}, as after a "
                "restore from a backup"
            )
        return self._failure is None

    def _stop(self, reason: str) -> None:
        self._failure = Unavailable(
            f"the metadata have stopped: {reason}; restart the broker once etcd is as it should be"
        )
        _log.error("the metadata have stopped", reason=reason)
        for shown in [*self._waiting, *(due[2] for due in self._due)]:
            if not shown.done():
                shown.set_exception(Unavailable(str(self._failure)))
        self._watches.end(self._failure)

    def _follow_failed(self, _: str, error: BaseException) -> None:
        self._stop(f"following etcd failed ({error!r})")

    @override
    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._idle.wait()
        await self._following.close()
        self._watches.end(None)
        await self._client.close()


def _settle(shown: asyncio.Future[None]) -> None:
    if not shown.done():
        shown.set_result(None)


def _give_up(shown: asyncio.Future[None]) -> None:
    if not shown.done():
        shown.set_exception(
            Unavailable(
                f"etcd has done the write, but has not told of it within {CATCH_UP_SECONDS:g} s"
            )
        )
