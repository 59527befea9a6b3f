"""What journal mirrors need of the cluster, and what they offer it."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from pydanube.errors import DanubeError
from pydanube.model.ids import BrokerId, Offset, SubscriptionId, TopicId
from pydanube.model.progress import Progress
from pydanube.storage.journal.producers import LastBatch
from pydanube.storage.journal.reader import StoredBatch
from pydanube.storage.topic_log import TopicLog
from pydanube.wire.calls import HandlerTable


class ReplicaSets(Protocol):
    """What mirrors ask of the cluster: where brokers are, and who keeps a topic's copies."""

    def address_of(self, broker: BrokerId) -> str | None:
        """Return where a broker answers other brokers, host:port; None while it is not there."""

    def is_leaving(self, broker: BrokerId) -> bool:
        """Tell whether a living broker should not keep copies: it is about to go, or drained."""

    def wanted(self, topic: str) -> int:
        """Return how many journals shall hold a topic's messages, the owner's included."""

    def wanted_by(self, own: int | None, policy: int | None) -> int:
        """Return how many that are by what is set for a topic, and for its namespace."""

    def candidates(self, topic: str, excluded: Collection[BrokerId]) -> Sequence[BrokerId]:
        """Return the brokers that could keep a copy of a topic, the best one first."""

    def name_of(self, topic_id: TopicId) -> str | None:
        """Return the name of a topic; None if there is none of that id, or not yet."""

    async def record(self, topic: str, epoch: int, members: Sequence[BrokerId]) -> None:
        """Record durably that these brokers, the owner first, hold what the topic acknowledges.

        One transaction that expects the owner's assignment at its epoch. Raises Fenced if the
        topic is not this broker's any more, and Unavailable if it is not known what happened; it
        may be repeated.
        """


class ReplicaState(Struct, frozen=True, kw_only=True):
    """How the copies of one topic are."""

    wanted: int
    members: tuple[BrokerId, ...]
    """As recorded, the owner first."""
    behind: tuple[BrokerId, ...]
    """Members that do not have everything."""
    waiting_bytes: int
    """What is not on a majority yet."""
    failure: DanubeError | None


class Replicated(Protocol):
    """A topic of this broker whose journal records go to mirrors."""

    @property
    def state(self) -> ReplicaState:
        """How its copies are at this moment."""

    def want(self, replicas: int) -> None:
        """Have that many copies, the owner's included, as soon as there are brokers for it."""

    def replace(self, broker: BrokerId) -> None:
        """Keep no copy on that broker: it leaves the cluster, or is to be relieved."""

    async def close(self) -> None:
        """Stream no more; to be called before the topic's log is let go."""


class RecoveredTail(Protocol):
    """What the journals of a replica set hold of a topic beyond its segments."""

    start: Offset
    """Of the first batch, at most where the segments end."""
    end: Offset
    """Behind the last message; nothing beyond it was ever acknowledged."""
    producers: Sequence[LastBatch]
    progress: Mapping[SubscriptionId, Progress]
    """Of every subscription that was asked for and has any."""

    def batches(self, start: Offset) -> AsyncIterator[Sequence[StoredBatch]]:
        """Return the batches that hold offsets from `start` on, in order, some at a time.

        Raises Unavailable when they cannot be read now; then recover once more.
        """


class Mirrors(Protocol):
    """Everything about journal mirrors of one broker; `JournalMirrors` is it."""

    def add_to(self, table: HandlerTable) -> None:
        """Serve other brokers on the table of the Raft port."""

    def wanted(self, topic: str) -> int:
        """Return how many journals shall hold a topic's messages, the owner's included."""

    def wanted_by(self, own: int | None, policy: int | None) -> int:
        """Return how many that are by what is set for a topic, and for its namespace."""

    async def replicate(
        self,
        log: TopicLog,
        *,
        topic: str,
        epoch: int,
        replicas: int,
        members: Sequence[BrokerId],
        subscriptions: Collection[SubscriptionId],
    ) -> Replicated:
        """Stream a topic's journal to mirrors from now on; return once the set is recorded.

        To be called after `Storage.take_over` with this epoch and before anything is appended.
        An epoch is streamed by one process only: an owner that starts again and finds its own
        journal gets itself a new epoch, recovers its own tail and takes over, as anybody would.
        `members` are those wanted, the owner first; who cannot be reached is replaced or left out.
        Nothing of the topic is acknowledged before this returns.
        """

    def replicate_alone(
        self,
        log: TopicLog,
        *,
        topic: str,
        epoch: int,
        replicas: int,
        subscriptions: Collection[SubscriptionId],
    ) -> Replicated:
        """Do the same for a topic in use, of which the owner alone is recorded under this epoch.

        It goes on acknowledging what is in the owner's journal, until mirrors have all of it and
        are recorded; nobody may have streamed the epoch before.
        """

    async def recover_tail(
        self,
        topic: str,
        topic_id: TopicId,
        *,
        set_epoch: int,
        members: Sequence[BrokerId],
        new_epoch: int,
        subscriptions: Collection[SubscriptionId],
    ) -> RecoveredTail:
        """Return what was acknowledged of a topic, from the set recorded last.

        The members promise durably to take nothing of an epoch before `new_epoch` any more. Raises
        Unavailable, naming the brokers that are missing, while too few of them answer, and Fenced
        if a later epoch has begun. The set must be read after the topic was assigned here.
        """

    async def close(self) -> None:
        """Let go of all connections."""
