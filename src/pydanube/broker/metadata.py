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

    @property
    def waiting_for(self) -> str | None:
        """What it has no room for at the moment, and the remedy; None while it has."""


class DiskStore(BrokerStore, Protocol):
    """A store on this broker's own disk."""

    @property
    def writing_since_ms(self) -> int | None:
        """Since when what it writes is under way; None while it writes nothing."""


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
    resign: Callable[[float], Awaitable[None]]
    """Let another broker lead, within so many seconds."""
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
    on_disk: DiskStore | None = None
    """The same store, if it is on this broker's own disk."""

    @property
    def is_alone(self) -> bool:
        """Whether nobody else could serve what this broker has: there is no other member."""
        return self.sharing is None or (self.raft is not None and self.raft.is_alone)

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
