"""Follows the cluster's keys, so that who serves a topic is known without asking anybody."""

import asyncio

from pydanube.cluster.records import BrokerRecord
from pydanube.cluster.view import ClusterView
from pydanube.errors import Conflict, DanubeError
from pydanube.metadata import keys
from pydanube.metadata.store import MetadataStore
from pydanube.model.ids import BrokerId
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope

_PAUSE_SECONDS = 0.2

_log = get_logger(__name__)


class Directory:
    """The view of the cluster, as it changes. Whoever waits is woken by any change."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting: list[asyncio.Event] = []
        self.view = self.read()

    def read(self) -> ClusterView:
        """Return the view as the store has it at this moment, all at one revision."""
        return ClusterView(self._store.list(keys.CLUSTERS))

    def start(self, tasks: TaskScope) -> None:
        """Begin to follow."""
        tasks.start(self._follow(), "follow the cluster")

    def wakes(self, event: asyncio.Event) -> None:
        """Set the event with every change from now on."""
        self._waiting.append(event)

    def owner_of(self, topic: str) -> BrokerId | None:
        """Return who has a topic, living or not."""
        owner = self.view.owners.get(topic)
        return owner.broker if owner is not None else None

    def owner_now(self, topic: str) -> BrokerId | None:
        """Return who has a topic by what the store shows; the view may be a turn behind."""
        for broker in self.view.brokers:
            if self._store.get(keys.assignment(broker, topic)) is not None:
                return broker
        owner = self.owner_of(topic)
        return None if owner in self.view.brokers else owner

    def record_of(self, broker: BrokerId) -> BrokerRecord | None:
        """Return where a living broker is reached."""
        return self.view.brokers.get(broker)

    async def _follow(self) -> None:
        while True:
            revision = self._store.revision
            self.view = self.read()
            self._wake()
            try:
                async for change in self._store.watch(keys.CLUSTERS, revision):
                    self.view.apply(change)
                    self._wake()
            except Conflict:
                continue  # Too far behind: begin anew.
            except DanubeError as error:
                _log.warning("the cluster cannot be followed", cause=str(error))
                await self._clock.sleep(_PAUSE_SECONDS)
            else:
                return  # The store is closed.

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()
