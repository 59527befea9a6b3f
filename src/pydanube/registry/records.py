"""What the registry keeps in the metadata store."""

import msgspec
from msgspec import Struct

from pydanube.schemas.compatibility import DEFAULT_MODE, CompatibilityMode


class VersionEntry(Struct, frozen=True, kw_only=True):
    """A version in its subject's list."""

    version: int
    schema_type: str
    fingerprint: str


class SubjectRecord(Struct, frozen=True, kw_only=True):
    """A subject. Whoever changes anything of it writes this record, so that changes cannot race."""

    id: int
    subject: str
    mode: CompatibilityMode = DEFAULT_MODE
    next_version: int = 1
    """Never given before, also to a version that is deleted: stored messages may name it."""
    versions: tuple[VersionEntry, ...] = ()
    """In the order of their numbers."""
    created_ms: int
    created_by: str = ""

    @property
    def latest(self) -> VersionEntry | None:
        """The newest version that is not deleted."""
        return self.versions[-1] if self.versions else None

    def entry(self, version: int) -> VersionEntry | None:
        """Return a version's entry; None if there is none, or not any more."""
        return next((each for each in self.versions if each.version == version), None)


class VersionRecord(Struct, frozen=True, kw_only=True):
    """One schema, as it was registered."""

    version: int
    schema_type: str
    definition: bytes
    canonical: bytes | None = None
    """Its normal form, which every broker can parse without a compiler; None: the definition."""
    fingerprint: str
    description: str = ""
    created_ms: int
    created_by: str = ""
    tags: tuple[str, ...] = ()


class SubjectIndex(Struct, frozen=True, kw_only=True):
    """Which subject an id belongs to."""

    subject: str


class TopicUse(Struct, frozen=True, kw_only=True):
    """A topic that is bound to a subject, and the versions its producers have named."""

    versions: tuple[int, ...] = ()


def encode(record: Struct) -> bytes:
    """Return a record as it is stored."""
    return msgspec.json.encode(record)
