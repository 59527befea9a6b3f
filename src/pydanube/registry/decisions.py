"""What becomes of a registration or a deletion, given what the registry holds. Pure."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.model.schemas import SchemaReference
from pydanube.registry.errors import IncompatibleSchema, SchemaInUse, SchemaNotFound, TooManySchemas
from pydanube.registry.records import SubjectRecord, TopicUse, VersionEntry
from pydanube.schemas.compatibility import CompatibilityMode

VERSIONS_MAX = 1_000
"""Of one subject: its record is rewritten with every change."""
SUBJECTS_MAX = 10_000
TAGS_MAX = 32
TAG_CHARACTERS_MAX = 128
DESCRIPTION_CHARACTERS_MAX = 4_096
CREATOR_CHARACTERS_MAX = 256
_LEAVING = (
    "bind each topic to another subject (`topics configure-schema TOPIC --subject OTHER`) or "
    "delete it (`topics delete TOPIC`)"
)
_SHOWN_MAX = 5


class NewSchema(Struct, frozen=True, kw_only=True):
    """What is to be registered."""

    subject: str
    schema_type: str
    definition: bytes
    description: str = ""
    created_by: str = ""
    tags: tuple[str, ...] = ()


def check_notes(new: NewSchema) -> None:
    """Refuse a description, creator or tags that are too long to be kept."""
    if len(new.description) > DESCRIPTION_CHARACTERS_MAX:
        raise InvalidRequest(
            f"the description has {len(new.description)} characters; "
            f"{DESCRIPTION_CHARACTERS_MAX} are allowed"
        )
    if len(new.created_by) > CREATOR_CHARACTERS_MAX:
        raise InvalidRequest(f"created_by is longer than {CREATOR_CHARACTERS_MAX} characters")
    if len(new.tags) > TAGS_MAX or any(len(tag) > TAG_CHARACTERS_MAX for tag in new.tags):
        raise InvalidRequest(
            f"a schema has {TAGS_MAX} tags of {TAG_CHARACTERS_MAX} characters at most"
        )


def find_equal(
    record: SubjectRecord | None, schema_type: str, fingerprint: str
) -> VersionEntry | None:
    """Return the version that says the same, whichever it is."""
    if record is None:
        return None
    wanted = (schema_type, fingerprint)
    same = (each for each in record.versions if (each.schema_type, each.fingerprint) == wanted)
    return next(same, None)


def add_version(record: SubjectRecord, schema_type: str, fingerprint: str) -> SubjectRecord:
    """Return the subject with one version more; its number is the old `next_version`."""
    if len(record.versions) >= VERSIONS_MAX:
        raise TooManySchemas(
            f"subject {record.subject} has {VERSIONS_MAX} versions; delete some that nobody uses"
        )
    entry = VersionEntry(
        version=record.next_version, schema_type=schema_type, fingerprint=fingerprint
    )
    return msgspec.structs.replace(
        record, next_version=record.next_version + 1, versions=(*record.versions, entry)
    )


def to_compare_with(record: SubjectRecord, mode: CompatibilityMode) -> tuple[VersionEntry, ...]:
    """Return the versions that a new one has to be compatible with."""
    if mode == "none":
        return ()
    return record.versions if mode.endswith("_transitive") else record.versions[-1:]


def check_compatible(record: SubjectRecord, refusals: Sequence[str]) -> None:
    """Refuse a definition that may not follow; say why, and what to do."""
    if not refusals:
        return
    shown = "; ".join(refusals[:_SHOWN_MAX])
    more = f" and {len(refusals) - _SHOWN_MAX} more" if len(refusals) > _SHOWN_MAX else ""
    raise IncompatibleSchema(
        f"the schema is not compatible with subject {record.subject} ({record.mode}): "
        f"{shown}{more}. Mend it, or set another compatibility mode"
    )


def resolve(record: SubjectRecord, reference: SchemaReference) -> int:
    """Return the version a reference stands for now."""
    latest = record.latest
    if latest is None:
        raise SchemaNotFound(f"schema subject {record.subject} has no version; register one first")
    pinned, lowest = reference.version, reference.min_version
    if pinned is not None and record.entry(pinned) is None:
        raise SchemaNotFound(
            f"version {pinned} of schema subject {record.subject} not found; the latest is "
            f"{latest.version}"
        )
    if lowest is not None and latest.version < lowest:
        raise SchemaNotFound(
            f"schema subject {record.subject} has not reached version {lowest}: not found; the "
            f"latest is {latest.version}"
        )
    return latest.version if pinned is None else pinned


def remove_version(
    record: SubjectRecord, version: int, uses: Mapping[str, TopicUse], *, force: bool
) -> SubjectRecord:
    """Return the subject without a version, unless a topic needs that version.

    A topic needs the versions its producers have named, for its stored messages name them too;
    and the latest one, which its next producer gets.
    """
    latest = record.latest
    if latest is None or record.entry(version) is None:
        raise SchemaNotFound(f"schema subject {record.subject} has no version {version}")
    kept = tuple(each for each in record.versions if each.version != version)
    if not force:
        named = sorted(topic for topic, use in uses.items() if version in use.versions)
        if named:
            raise _in_use(record, version, "is named by producers of", named, _LEAVING)
        if uses and version == latest.version:
            ways = f"register a newer version, {_LEAVING}"
            raise _in_use(record, version, "is what new producers get on", sorted(uses), ways)
    return msgspec.structs.replace(record, versions=kept)


def check_removable(record: SubjectRecord, uses: Mapping[str, TopicUse], *, force: bool) -> None:
    """Refuse to delete a subject that topics are bound to."""
    if uses and not force:
        raise _in_use(record, None, "is bound to", sorted(uses), _LEAVING)


def _in_use(
    record: SubjectRecord, version: int | None, why: str, topics: list[str], ways: str
) -> SchemaInUse:
    what = "subject" if version is None else f"version {version} of"
    which = "" if version is None else f" --version {version}"
    relation = "topic" if len(topics) == 1 else "topics"
    shown = ", ".join(topics[:_SHOWN_MAX])
    more = f" and {len(topics) - _SHOWN_MAX} more" if len(topics) > _SHOWN_MAX else ""
    return SchemaInUse(
        f"{what} {record.subject} {why} {relation} {shown}{more}. Keep it, or {ways} first. If "
        "messages of these topics may become unreadable: "
        f"`danube schemas delete {record.subject}{which} --confirm --force`"
    )
