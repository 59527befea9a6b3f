"""Which topics stay with their broker, because nobody else can read their history."""

from pydanube.metadata.store import MetadataStore
from pydanube.topics.catalog import Catalog


class Staying:
    """Asked before anybody asks for a move; a broker that is gone is followed by other rules."""

    def __init__(self, store: MetadataStore, *, moves_reliable: bool) -> None:
        self._catalog = Catalog(store)
        self._moves_reliable = moves_reliable

    def reason(self, topic: str) -> str | None:
        """Return why a topic cannot move, and what would let it; None if it can."""
        record = self._catalog.topic(topic)
        if self._moves_reliable or record is None or record.strategy == "NonReliable":
            return None
        return (
            f"the history of {topic} lies on its broker's own disk and cannot move "
            "(storage.mode: local); with shared_fs or object_store it can"
        )
