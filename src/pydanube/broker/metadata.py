"""What a broker knows of its metadata: the store, and who the broker is in it."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from pydanube.errors import DanubeError
from pydanube.metadata.store import MetadataStore
from pydanube.model.ids import BrokerId
from pydanube.runtime.files import FileLock
from pydanube.wire.calls import Channel, Engine

if TYPE_CHECKING:
    from pydanube.cluster.leader import Leadership
    from pydanube.metadata.etcd_store import EtcdMetadataStore
    from pydanube.metadata.raft_store import RaftStore


class BrokerStore(MetadataStore, Protocol):
    """A store that tells whether it still works."""

    @property
    def failure(self) -> DanubeError | None:
        """Why it takes nothing any more; None while all is well."""


class Peers(Struct, frozen=True, kw_only=True):
    """How brokers of a cluster talk to each other."""

    engine: Engine
    connect: Callable[[str], Channel]


class Sharing(Struct, frozen=True, kw_only=True):
    """What a broker has that shares its metadata with others."""

    leadership: "Leadership"
    peer_address: str
    """Where other brokers reach this one."""
    barrier: Callable[[], Awaitable[None]]
    """Returns once reads see all that was acknowledged before, through whatever broker."""
    end: Callable[[], Awaitable[None]]
    """Give up what only this broker holds, before the store is closed."""


class OpenMetadata(Struct, frozen=True, kw_only=True):
    """The store, and this broker's number in it."""

    store: BrokerStore
    broker: BrokerId
    sharing: Sharing | None = None
    """None for a broker that stands alone."""
    raft: "RaftStore | None" = None
    """The same store, if it is shared by Raft."""
    etcd: "EtcdMetadataStore | None" = None
    """The same store, if it is in etcd."""
    lock: FileLock | None = None

    @property
    def note(self) -> str | None:
        """What an operator should see to, though reads go on."""
        return self.etcd.trouble if self.etcd is not None else None

    async def close(self) -> None:
        """Leave what is shared, and release the store."""
        try:
            if self.sharing is not None:
                await self.sharing.end()
        finally:
            await self.store.close()
            if self.lock is not None:
                await self.lock.release()
