"""Which broker serves which topic: the question topics ask, whoever knows the answer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pydanube.errors import DanubeError
from pydanube.metadata.store import Operation
from pydanube.topics.catalog import TopicRecord

if TYPE_CHECKING:
    from pydanube.topics.topic import Topic


class Placement(Protocol):
    """Where topics are served, in a cluster. A broker alone has none: every topic is here."""

    def absence(self, topic: str) -> DanubeError | None:
        """Return why a topic cannot be used here although it exists; None if it does not exist."""

    def partitions(self, base: str) -> list[str]:
        """Return the partitions of a base, on whatever brokers, in order."""

    def plan_new(self, topic: str, record: TopicRecord) -> Sequence[Operation]:
        """Return what gives a new topic its broker, in the transaction that creates it."""

    async def open_new(self, topic: str, record: TopicRecord, revision: int) -> "Topic":
        """Serve a topic that was created at that revision; WrongBroker if another one does."""

    def plan_delete(self, topic: str) -> Sequence[Operation]:
        """Return what forgets the place of a topic that is deleted."""
