"""What the metadata remember of having been restored from a copy.

A copy goes on far behind the revision and the numbers it had: what was given between the copy and
the loss is never given again, and whoever meets it knows that these metadata never knew of it.
"""

import msgspec
from msgspec import Struct

from pydanube.metadata import keys
from pydanube.metadata.store import MetadataStore
from pydanube.model.ids import TopicId

REVISIONS = 1_000_000_000
"""How far revisions leap: more than are used up between a copy and its restoration."""
BLOCKS = 1_000_000
"""How far counters of ids leap."""


class Restore(Struct, frozen=True, kw_only=True):
    """A copy of a revision has become the metadata, which go on behind another one."""

    revision: int
    goes_on_behind: int
    time_ms: int
    is_compared: bool = False
    """Journals and segments have been compared with it, and what they have of newer was told."""


def restores(store: MetadataStore) -> list[Restore]:
    """Return all restorations, the earliest first."""
    return [msgspec.json.decode(each.value, type=Restore) for each in store.list(keys.RESTORES)]


def recovered_topics(store: MetadataStore) -> dict[TopicId, int]:
    """Return the topics that were brought in from journals, and up to which epoch."""
    return {
        TopicId(int(each.key.removeprefix(keys.RECOVERED))): int(each.value)
        for each in store.list(keys.RECOVERED)
    }


def encode_restore(restore: Restore) -> bytes:
    """Return a restoration as the store keeps it."""
    return msgspec.json.encode(restore)
