"""Lets the journal go of topics that were this broker's once: others have what it holds of them."""

from pydanube.runtime.clock import Clock
from pydanube.storage.segments.catalog import SegmentCatalog
from pydanube.storage.storage import Storage
from pydanube.topics.catalog import Catalog

LOOK_SECONDS = 5.0


class Leftovers:
    """Looks from time to time how far segments reach.

    What only this journal has stays: as long as no later owner has claimed the topic, somebody may
    come for it.
    """

    def __init__(
        self, storage: Storage, catalog: Catalog, segments: SegmentCatalog, clock: Clock
    ) -> None:
        self._storage = storage
        self._catalog = catalog
        self._segments = segments
        self._clock = clock

    async def run(self) -> None:
        """Look around until cancelled."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Look around once."""
        left = self._storage.left_topics()
        if not left:
            return
        names = {record.id: name for name, record in self._catalog.topics()}
        for topic_id in left:
            name = names.get(topic_id)
            if name is None:
                self._storage.drop_topic(topic_id)
                continue
            frontier = self._segments.frontier(name, topic_id)
            if frontier is not None:
                self._storage.follow(topic_id, frontier.epoch, frontier.end)
