"""Verbs on brokers."""

from collections.abc import Sequence

from msgspec import Struct

from pydanube.client.admin import AdminConnection
from pydanube.client.admin_answers import Balance, Broker, DrainReport, Rebalancing
from pydanube.errors import InvalidRequest, NotFound

NO_LEADER = "not_found"


class Leader(Struct, frozen=True):
    """The broker that decides for the cluster."""

    leader: str


class Activated(Struct, frozen=True):
    """A broker takes topics again."""

    broker_id: str
    reason: str


class BrokerOperations:
    """What an operator does with brokers."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def list_brokers(self) -> list[Broker]:
        """Return the brokers of the cluster."""
        return await self._connection.brokers()

    async def leader(self) -> Leader:
        """Return the leader."""
        leader = await self._connection.leader()
        if leader == NO_LEADER:
            raise NotFound("the cluster has no leader right now")
        return Leader(leader)

    async def unload(
        self,
        broker_id: str,
        *,
        max_parallel: int = 1,
        namespaces_include: Sequence[str] = (),
        namespaces_exclude: Sequence[str] = (),
        dry_run: bool = False,
        timeout_seconds: int = 60,
    ) -> DrainReport:
        """Move every topic away from a broker, or tell which would be moved."""
        if max_parallel < 1 or timeout_seconds < 1:
            raise InvalidRequest("max-parallel and timeout-seconds must be at least 1")
        return await self._connection.unload_broker(
            broker_id,
            max_parallel=max_parallel,
            namespaces_include=namespaces_include,
            namespaces_exclude=namespaces_exclude,
            dry_run=dry_run,
            timeout_seconds=timeout_seconds,
        )

    async def activate(self, broker_id: str, reason: str = "admin_activate") -> Activated:
        """Let a drained broker take topics again."""
        await self._connection.activate_broker(broker_id, reason)
        return Activated(broker_id, reason)

    async def balance(self) -> Balance:
        """Return how evenly the brokers share the work."""
        return await self._connection.balance()

    async def rebalance(
        self, *, dry_run: bool = False, max_moves: int | None = None
    ) -> Rebalancing:
        """Move topics until the work is shared evenly, or tell which would be moved."""
        return await self._connection.rebalance(dry_run=dry_run, max_moves=max_moves)
