"""Calls to etcd: on whichever of its servers answers, and never twice if that could matter."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from pydanube.errors import NotFound, Unavailable
from pydanube.wire.calls import CallNotSent, CallRefused, ExchangeChannel, StatusCode
from pydanube.wire.danube.generated import Etcd_pb2 as etcd
from pydanube.wire.etcd.messages import (
    News,
    Outcome,
    Page,
    Stored,
    Write,
    count_further,
    counted,
    decode,
    error_of,
    news,
    outcome,
    page,
    transaction,
)

CALL_SECONDS = 10.0
PAGE_KEYS = 1_000

_RANGE = "/etcdserverpb.KV/Range"
_TXN = "/etcdserverpb.KV/Txn"
_WATCH = "/etcdserverpb.Watch/Watch"
_LEASE_GRANT = "/etcdserverpb.Lease/LeaseGrant"
_LEASE_REVOKE = "/etcdserverpb.Lease/LeaseRevoke"
_LEASE_KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"

Connect = Callable[[str], ExchangeChannel]
"""Makes a channel to an endpoint, such as http://127.0.0.1:2379."""


class EtcdClient:
    """One client of one etcd cluster.

    Errors are DanubeErrors. Unavailable means: not done if its text says so, else not known. Only
    what certainly was not done is tried on the next server; reads are tried on all.
    """

    def __init__(
        self, endpoints: Sequence[str], connect: Connect, *, call_seconds: float = CALL_SECONDS
    ) -> None:
        assert endpoints, "etcd has an address"
        self._endpoints = tuple(endpoints)
        self._connect = connect
        self._call_seconds = call_seconds
        self._channels: dict[str, ExchangeChannel] = {}
        self._present = 0

    async def read(self, key: bytes) -> tuple[Stored | None, int]:
        """Return a key's value and the revision of the store; linearizable."""
        found = await self._page(etcd.RangeRequest(key=key))
        return (found.entries[0] if found.entries else None), found.revision

    async def read_all(self, first: bytes, end: bytes) -> Page:
        """Return all keys from `first` to before `end`, as they were at one revision."""
        entries: list[Stored] = []
        revision = 0
        while True:
            request = etcd.RangeRequest(
                key=first, range_end=end, limit=PAGE_KEYS, revision=revision
            )
            found = await self._page(request)
            entries += found.entries
            revision = revision or found.revision
            if not found.more or not found.entries:
                return Page(entries, revision, more=False)
            first = found.entries[-1].key + b"\0"

    async def transact(
        self, conditions: Sequence[tuple[bytes, int]], writes: Sequence[Write]
    ) -> Outcome:
        """Do all writes if every key's revision is as said (0: absent), or nothing."""
        return outcome(await self._call(_TXN, transaction(conditions, writes)))

    async def count_further(self, key: bytes) -> int:
        """Return 1, 2, 3 …: how often this was asked for the key; never a number twice."""
        return counted(await self._call(_TXN, count_further(key)))

    async def grant_lease(self, seconds: int) -> int:
        """Return a lease that lives that long, or longer where etcd says so."""
        request = etcd.LeaseGrantRequest(TTL=seconds)
        reply = await self._call(_LEASE_GRANT, request.SerializeToString())
        return decode(etcd.LeaseGrantResponse, reply).ID

    async def revoke_lease(self, lease: int) -> None:
        """End a lease; NotFound if there is none."""
        await self._call(_LEASE_REVOKE, etcd.LeaseRevokeRequest(ID=lease).SerializeToString())

    async def renew_lease(self, lease: int) -> None:
        """Let a lease's time begin anew; NotFound if there is none."""
        request = etcd.LeaseKeepAliveRequest(ID=lease).SerializeToString()
        endpoint = self._endpoint
        replies = self._channel(endpoint).exchange(_LEASE_KEEP_ALIVE, _once(request))
        try:
            async with asyncio.timeout(self._call_seconds):
                reply = await anext(replies, None)
        except CallRefused as refused:
            self._turn_away(endpoint, refused)
            raise error_of(refused) from refused
        except TimeoutError as error:
            self._go_on(endpoint)
            raise Unavailable("etcd has not answered whether the lease lives on") from error
        finally:
            await _end(replies)
        if reply is None:
            raise Unavailable("etcd has not answered whether the lease lives on")
        if not decode(etcd.LeaseKeepAliveResponse, reply).TTL:
            raise NotFound(f"lease {lease} does not exist, or has expired: ask for a new one")

    async def watch(self, first: bytes, end: bytes, from_revision: int) -> AsyncIterator[News]:
        """Iterate over what happens from a revision on to keys from `first` to before `end`.

        The first news, without changes, says that etcd watches. The iteration ends with
        Unavailable when the connection is lost, or after news that say that etcd ended it.
        """
        create = etcd.WatchCreateRequest(key=first, range_end=end, start_revision=from_revision)
        request = etcd.WatchRequest(create_request=create).SerializeToString()
        over = asyncio.Event()
        endpoint = self._endpoint
        replies = self._channel(endpoint).exchange(_WATCH, _once(request, over))
        try:
            async for reply in replies:
                told = news(reply)
                yield told
                if told.ended is not None or told.compacted_revision:
                    return
        except CallRefused as refused:
            self._turn_away(endpoint, refused)
            raise error_of(refused) from refused
        finally:
            over.set()
            await _end(replies)
        self._go_on(endpoint)
        raise Unavailable("etcd has ended the stream of changes")

    async def close(self) -> None:
        """Cut running calls off and release the connections."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    async def _page(self, request: etcd.RangeRequest) -> Page:
        return page(await self._call(_RANGE, request.SerializeToString(), repeatable=True))

    async def _call(self, path: str, request: bytes, *, repeatable: bool = False) -> bytes:
        attempts = len(self._endpoints)
        while True:
            attempts -= 1
            endpoint = self._endpoint
            try:
                return await self._channel(endpoint).unary(
                    path, request, timeout_seconds=self._call_seconds
                )
            except CallRefused as refused:
                turned = self._turn_away(endpoint, refused)
                harmless = repeatable or isinstance(refused, CallNotSent)
                if not (turned and harmless and attempts > 0):
                    raise error_of(refused) from refused

    @property
    def _endpoint(self) -> str:
        return self._endpoints[self._present]

    def _channel(self, endpoint: str) -> ExchangeChannel:
        if endpoint not in self._channels:
            self._channels[endpoint] = self._connect(endpoint)
        return self._channels[endpoint]

    def _turn_away(self, endpoint: str, refused: CallRefused) -> bool:
        """Try the next server from now on if this one is of no use; return whether it is not."""
        useless = refused.code in (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED)
        if useless:
            self._go_on(endpoint)
        return useless

    def _go_on(self, endpoint: str) -> None:
        # Of many calls that fail together, one turns to the next server.
        if endpoint == self._endpoint:
            self._present = (self._present + 1) % len(self._endpoints)


async def _once(request: bytes, over: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    """Send one request; the stream stays open until it is over."""
    yield request
    if over is not None:
        await over.wait()


async def _end(replies: AsyncIterator[bytes]) -> None:
    close = getattr(replies, "aclose", None)
    if close is not None:
        await close()
