"""The door to the schemas: registering, finding, judging and deleting them."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from pydanube.errors import Conflict, Overloaded, Unavailable
from pydanube.metadata.store import MetadataStore
from pydanube.model.names import check_client_name
from pydanube.model.schemas import SCHEMA_ID_MAX, SchemaReference, check_reference
from pydanube.observability.logging import get_logger
from pydanube.registry import decisions
from pydanube.registry.compiled import CompiledSchemas, SchemaKey
from pydanube.registry.decisions import NewSchema
from pydanube.registry.errors import SchemaNotFound, TooManySchemas
from pydanube.registry.records import SubjectRecord, VersionEntry, VersionRecord
from pydanube.registry.shelf import Kept, Shelf, Transaction
from pydanube.runtime.clock import Clock
from pydanube.runtime.threads import WorkerThreads
from pydanube.schemas.compatibility import CompatibilityMode, check, parse_mode
from pydanube.schemas.format import Schema, SchemaTools

ATTEMPTS_MAX = 100
"""How often a change is tried that others overtake; each time one of them has succeeded."""
PARSING_MAX = 256
"""How many calls may wait for a thread to parse what they sent."""

Result = TypeVar("Result")

_log = get_logger(__name__)


class Registered(Struct, frozen=True, kw_only=True):
    """What became of a registration."""

    schema_id: int
    version: int
    is_new_version: bool
    fingerprint: str


class FoundSchema(Struct, frozen=True):
    """A version and the subject it belongs to."""

    subject: SubjectRecord
    version: VersionRecord


class ResolvedSchema(Struct, frozen=True, kw_only=True):
    """What a producer's reference stands for."""

    subject: str
    schema_id: int
    version: int


class SchemaRegistry:
    """Keeps schemas in the metadata store. A refused call changes nothing.

    Two changes of one subject never overwrite each other, wherever they are made: each is written
    only if the subject is still as it was when the change was decided. Definitions are parsed and
    compared in worker threads.
    """

    def __init__(
        self, store: MetadataStore, clock: Clock, threads: WorkerThreads, tools: SchemaTools
    ) -> None:
        self._clock = clock
        self._threads = threads
        self._shelf = Shelf(store)
        self._compiled = CompiledSchemas(tools)
        self._parsing = 0

    # Registering.

    async def register(self, new: NewSchema) -> Registered:
        """Add a version to a subject, created if it is missing, or find the one that is equal."""
        check_client_name("schema subject", new.subject)
        decisions.check_notes(new)
        schema = await self._in_thread(
            lambda: self._compiled.parse(new.schema_type, new.definition)
        )
        return await self._until_written(new.subject, lambda: self._register(new, schema))

    async def _register(self, new: NewSchema, schema: Schema) -> Registered:
        kept = self._shelf.subject(new.subject)
        equal = decisions.find_equal(
            None if kept is None else kept.record, schema.format, schema.fingerprint
        )
        if kept is not None and equal is not None:
            return Registered(
                schema_id=kept.record.id,
                version=equal.version,
                is_new_version=False,
                fingerprint=equal.fingerprint,
            )
        if kept is None:
            record = await self._create(new, schema)
        else:
            record = await self._add(kept, new, schema)
        entry = record.latest
        assert entry is not None, "a version has just been added"
        self._compiled.keep((record.id, entry.version), schema)
        _log.info(
            "schema registered", subject=new.subject, version=entry.version, type=schema.format
        )
        return Registered(
            schema_id=record.id,
            version=entry.version,
            is_new_version=True,
            fingerprint=entry.fingerprint,
        )

    async def _create(self, new: NewSchema, schema: Schema) -> SubjectRecord:
        if self._shelf.count() >= decisions.SUBJECTS_MAX:
            raise TooManySchemas(
                f"the registry has {decisions.SUBJECTS_MAX} subjects; delete some that nobody uses"
            )
        empty = SubjectRecord(
            id=await self._shelf.next_id(),
            subject=new.subject,
            created_ms=self._clock.now_ms(),
            created_by=new.created_by,
        )
        record = decisions.add_version(empty, schema.format, schema.fingerprint)
        added = self._version(empty.next_version, new, schema)
        await self._shelf.apply(self._shelf.plan_creation(record, added))
        return record

    async def _add(
        self, kept: Kept[SubjectRecord], new: NewSchema, schema: Schema
    ) -> SubjectRecord:
        record = kept.record
        refusals = await self._refusals(record, schema, record.mode)
        decisions.check_compatible(record, refusals)
        changed = decisions.add_version(record, schema.format, schema.fingerprint)
        added = self._version(record.next_version, new, schema)
        await self._shelf.apply(self._shelf.plan_change(kept, changed, added=added))
        return changed

    def _version(self, version: int, new: NewSchema, schema: Schema) -> VersionRecord:
        same = schema.canonical == new.definition
        return VersionRecord(
            version=version,
            schema_type=schema.format,
            definition=new.definition,
            canonical=None if same else schema.canonical,
            fingerprint=schema.fingerprint,
            description=new.description,
            created_ms=self._clock.now_ms(),
            created_by=new.created_by,
            tags=new.tags,
        )

    async def _refusals(
        self, record: SubjectRecord, schema: Schema, mode: CompatibilityMode
    ) -> list[str]:
        """Return why a schema may not follow the versions there are."""
        earlier = decisions.to_compare_with(record, mode)
        schemas = [await self._schema(record, each) for each in earlier]
        refusals = await self._in_thread(lambda: check(mode, schema, schemas))
        return [f"version {earlier[each.previous].version}: {each}" for each in refusals]

    async def _schema(self, record: SubjectRecord, entry: VersionEntry) -> Schema:
        key = (record.id, entry.version)
        schema = self._compiled.get(key)
        if schema is None:
            stored = self._stored(record, entry.version)
            schema = await self._in_thread(self._compiled.parsing(stored))
            self._compiled.keep(key, schema)
        return schema

    async def check_compatibility(
        self, subject: str, schema_type: str, definition: bytes, mode: str | None
    ) -> list[str]:
        """Return why a definition may not be the next version; nothing if it may."""
        record = self._shelf.require(subject).record
        wanted = record.mode if mode is None else parse_mode(mode)
        schema = await self._in_thread(lambda: self._compiled.parse(schema_type, definition))
        if decisions.find_equal(record, schema.format, schema.fingerprint) is not None:
            return []
        return await self._refusals(record, schema, wanted)

    # Finding.

    def subject(self, name: str) -> SubjectRecord | None:
        """Return a subject as it is now, None if there is none."""
        kept = self._shelf.subject(name)
        return None if kept is None else kept.record

    def subject_of(self, schema_id: int) -> str | None:
        """Return which subject has an id, None if there is none."""
        return self._shelf.subject_of(schema_id) if 0 <= schema_id <= SCHEMA_ID_MAX else None

    def find(self, schema_id: int, version: int | None) -> FoundSchema:
        """Return a version of the subject with an id; the latest if none is named."""
        subject = self.subject_of(schema_id)
        if subject is None:
            raise SchemaNotFound(f"schema id {schema_id} not found; no subject has it")
        return self.find_version(subject, version)

    def find_version(self, subject: str, version: int | None = None) -> FoundSchema:
        """Return a version of a subject; the latest if none is named."""
        record = self._shelf.require(subject).record
        reference = SchemaReference(subject=subject, version=version)
        return FoundSchema(record, self._stored(record, decisions.resolve(record, reference)))

    def versions(self, subject: str) -> list[FoundSchema]:
        """Return all versions of a subject, the oldest first."""
        record = self._shelf.require(subject).record
        return [
            FoundSchema(record, self._stored(record, entry.version)) for entry in record.versions
        ]

    def subjects(self) -> list[SubjectRecord]:
        """Return all subjects."""
        return self._shelf.subjects()

    def tags(self, record: SubjectRecord) -> tuple[str, ...]:
        """Return the tags of a subject's latest version."""
        latest = record.latest
        return () if latest is None else self._stored(record, latest.version).tags

    def resolve(self, reference: SchemaReference) -> ResolvedSchema:
        """Return what a reference stands for now; SchemaNotFound if there is no such schema."""
        record = self._shelf.require(check_reference(reference).subject).record
        version = decisions.resolve(record, reference)
        return ResolvedSchema(subject=record.subject, schema_id=record.id, version=version)

    def _stored(self, record: SubjectRecord, version: int) -> VersionRecord:
        stored = self._shelf.version(record.subject, version)
        assert stored is not None, "a version is written and deleted together with its entry"
        return stored

    # Changing and deleting.

    async def set_mode(self, subject: str, mode: str) -> None:
        """Set what later versions are held to."""
        wanted = parse_mode(mode)

        async def change() -> None:
            kept = self._shelf.require(subject)
            changed = msgspec.structs.replace(kept.record, mode=wanted)
            await self._shelf.apply(self._shelf.plan_change(kept, changed))

        await self._until_written(subject, change)

    async def delete_version(self, subject: str, version: int, *, force: bool = False) -> None:
        """Delete a version; SchemaInUse if a topic needs it, unless forced. Its number is gone."""

        async def delete() -> None:
            kept = self._shelf.require(subject)
            uses = self._shelf.uses(subject)
            changed = decisions.remove_version(kept.record, version, uses, force=force)
            await self._shelf.apply(self._shelf.plan_change(kept, changed, removed=version))

        await self._until_written(subject, delete)
        _log.info("schema version deleted", subject=subject, version=version, forced=force)

    async def delete_subject(self, subject: str, *, force: bool = False) -> list[int]:
        """Delete a subject with all its versions, and return these; its id is never used again."""

        async def delete() -> list[int]:
            kept = self._shelf.require(subject)
            decisions.check_removable(kept.record, self._shelf.uses(subject), force=force)
            await self._shelf.apply(self._shelf.plan_removal(kept))
            return [each.version for each in kept.record.versions]

        versions = await self._until_written(subject, delete)
        _log.info("schema subject deleted", subject=subject, forced=force)
        return versions

    # For topics.

    def plan_use(self, subject: str, topic: str, version: int | None) -> Transaction | None:
        """Return what to write together with a topic's record when it is bound to a subject."""
        return self._shelf.plan_use(subject, topic, version)

    def compiled(self, key: SchemaKey) -> Schema | None:
        """Return a schema if it is at hand."""
        return self._compiled.get(key)

    def parsing(self, subject: str, version: int) -> Callable[[], Schema]:
        """Return the work of getting a version that exists, for a thread; see `keep`."""
        record = self._shelf.require(subject).record
        schema = self._compiled.get((record.id, version))
        if schema is not None:
            return lambda: schema
        return self._compiled.parsing(self._stored(record, version))

    def keep(self, key: SchemaKey, schema: Schema) -> None:
        """Have a schema at hand from now on."""
        self._compiled.keep(key, schema)

    # How.

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        if self._parsing >= PARSING_MAX:
            raise Overloaded(f"{PARSING_MAX} schemas are being checked already; try again")
        self._parsing += 1
        try:
            return await self._threads.run(work)
        finally:
            self._parsing -= 1

    async def _until_written(self, subject: str, change: Callable[[], Awaitable[Result]]) -> Result:
        """Decide anew as long as somebody else has changed the subject meanwhile."""
        for _ in range(ATTEMPTS_MAX):
            try:
                return await change()
            except Conflict as error:
                if type(error) is not Conflict:
                    raise  # Decided, and not overtaken.
        raise Unavailable(f"schema subject {subject} keeps changing; try again")
