"""What storage refuses by names of its own."""

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct

from pydanube.errors import Conflict, Corruption, NotFound, Unavailable
from pydanube.model.ids import JournalPosition, TopicId

_NAMED_MAX = 10


def ways_apart(directory: str) -> str:
    """Say how brokers on one machine get journals of their own."""
    return (
        "each broker needs a directory of its own: another storage.local_wal_root in its "
        "configuration or, where brokers share a file, in its environment: "
        f"DANUBE_STORAGE__LOCAL_WAL_ROOT={directory.rstrip('/')}-2 (and --data-dir for its "
        "metadata)"
    )


class DamagedRange(Struct, frozen=True):
    """Bytes of one journal file that were synced once and are no frames now."""

    file_name: str
    start: JournalPosition
    end: JournalPosition


class LostOffsets(Struct, frozen=True):
    """Messages of one topic that may lie in damaged bytes; `end` None: nobody knows how many."""

    topic_id: TopicId
    start: int
    end: int | None

    def describe(self) -> str:
        """Name the topic and the offsets in words."""
        if self.end is None:
            return f"topic {self.topic_id} perhaps from offset {self.start} on"
        return f"topic {self.topic_id} offsets {self.start} to {self.end - 1}"


class JournalDamaged(Corruption):
    """The journal is damaged in the middle. It was left as it is."""

    def __init__(
        self, directory: str, damaged: Sequence[DamagedRange], lost: Sequence[LostOffsets]
    ) -> None:
        places = [f"{d.file_name} at position {d.start} to {d.end}" for d in damaged]
        hit = [offsets.describe() for offsets in lost]
        super().__init__(
            f"the journal in {directory} is damaged: {_listed(places)}. "
            f"Lost: {_listed(hit) if hit else 'no message of a known topic'}. "
            "Nothing was changed. Restore the file from a copy, or stop the broker and give these "
            "bytes up with: danube journal quarantine --data-dir DIR"
        )
        self.directory = directory
        self.damaged = tuple(damaged)
        self.lost = tuple(lost)


class JournalContradiction(Corruption):
    """A topic's id stands for two topics: the metadata were an older copy, and gave it again."""

    def __init__(self, topic_id: TopicId, base: int, end: int, position: JournalPosition) -> None:
        super().__init__(
            f"the journal contradicts itself at position {position}: topic {topic_id} has a batch "
            f"at offset {base}, but its offsets up to {end - 1} are given already. Most likely the "
            "metadata were an older copy and gave the id of another topic again. Nothing was "
            "changed. See what can be told apart with: danube recover --data-dir DIR"
        )
        self.topic_id = topic_id
        self.position = position


class MetadataOlder(Corruption):
    """The metadata are an older copy: journal or segments hold what they do not know."""

    next_step = (
        "Nothing was changed. `danube recover --data-dir DIR` (or --config-file FILE) shows what "
        "the metadata lack; with --apply it brings that in."
    )

    def __init__(self, missing: Sequence[str]) -> None:
        super().__init__(
            "the metadata are older than the messages that are stored here. They do not know: "
            f"{_listed(list(missing))}. Nothing was deleted, and nothing is served. Bring back "
            "newer metadata if there are any; otherwise stop the broker and let it look with: "
            "danube recover --data-dir DIR (or --config-file FILE), then add --apply"
        )
        self.missing = tuple(missing)


class StoreProblem(Enum):
    """What is wrong with a segment store, by what would mend it."""

    CREDENTIALS = "it does not accept the credentials, or they do not permit this"
    PLACE = "the bucket or directory does not exist"
    SETTINGS = "its settings do not fit together"
    UNREACHABLE = "it cannot be reached"
    THROTTLED = "it asks for fewer requests"
    TIMEOUT = "it does not answer in time"
    FULL = "it has no space left"
    OTHER = "it failed"

    @property
    def needs_operator(self) -> bool:
        """Whether waiting cannot help."""
        return self in (StoreProblem.CREDENTIALS, StoreProblem.PLACE, StoreProblem.SETTINGS)


class StoreFailed(Unavailable):
    """The segment store did not do what it was asked for. Whether it did it later is not known."""

    def __init__(self, store: str, problem: StoreProblem, detail: str, remedy: str = "") -> None:
        text = f"{store}: {problem.value} ({detail})"
        super().__init__(f"{text}; {remedy}" if remedy else text)
        self.problem = problem


class ObjectMissing(NotFound):
    """The segment store has no object of that name."""

    def __init__(self, store: str, key: str) -> None:
        super().__init__(f"{store} has no object {key}")
        self.key = key


class ObjectTooShort(Corruption):
    """An object ends before the bytes that were asked for."""

    def __init__(self, store: str, key: str, position: int, length: int) -> None:
        super().__init__(
            f"object {key} in {store} is damaged: it ends before byte {position + length}"
        )
        self.key = key


class Fenced(Conflict):
    """A later owner of the topic has taken over; this one must not change anything any more.

    What was under way may be in the journals that the later one goes by.
    """

    retryable = True
    wire_status = "UNAVAILABLE"


def _listed(texts: list[str]) -> str:
    more = len(texts) - _NAMED_MAX
    return ", ".join(texts[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
