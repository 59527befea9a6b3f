"""A producer of a topic, as the broker knows it."""

from pydanube.model.ids import ProducerId
from pydanube.topics.catalog import AccessMode

LIVE_MS = 15_000
"""A producer that neither sent nor asked for its health for three polls is gone for the limits."""


class Producer:
    """A name that may publish.

    The per-message protocol has no close, so life is told from its last call.
    """

    __slots__ = ("access_mode", "close_due", "id", "name", "seen_ms", "streams")

    def __init__(
        self, producer_id: ProducerId, name: str, access_mode: AccessMode, seen_ms: int
    ) -> None:
        self.id = producer_id
        self.name = name
        self.access_mode: AccessMode = access_mode
        self.seen_ms = seen_ms
        self.close_due = False
        self.streams = 0
        """How many streams it publishes on; while one is open, it is here."""

    def is_live(self, now_ms: int) -> bool:
        """Tell whether it has been heard of lately."""
        return self.streams > 0 or now_ms - self.seen_ms < LIVE_MS
