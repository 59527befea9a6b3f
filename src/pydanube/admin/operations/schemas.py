"""Verbs on schemas, and on what topics ask of their messages."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct, structs

from pydanube.client.schema_calls import (
    CompatibilityReport,
    RegisteredSchema,
    SchemaVersion,
    SubjectSummary,
    VersionSummary,
)
from pydanube.errors import InvalidRequest, NotFound
from pydanube.runtime.protobuf_compiler import ProcessProtobufCompiler
from pydanube.schemas.catalog import load_format
from pydanube.schemas.compatibility import compatibility, difference
from pydanube.schemas.format import Schema, SchemaTools

_ROOT = "(root)"


class SchemaChange(Struct, frozen=True, kw_only=True):
    """What was done to a subject."""

    subject: str
    change: str
    versions: list[int] = []


class CompatibilityOf(Struct, frozen=True, kw_only=True):
    """What later versions of a subject are held to."""

    subject: str
    compatibility_mode: str


class ShownSchema(Struct, frozen=True, kw_only=True):
    """One schema, for people and programs to read."""

    subject: str
    schema_id: int
    version: int
    schema_type: str
    definition: str
    """As it was registered; bytes that are no text are written out as \\xff."""
    fingerprint: str
    compatibility_mode: str
    description: str
    tags: list[str]
    created_at: int
    created_by: str


class Difference(Struct, frozen=True, kw_only=True):
    """One thing that changed; its place is a path of field names."""

    place: str
    change: str


class Obstacle(Struct, frozen=True, kw_only=True):
    """One reason why a reader cannot read what a writer writes."""

    place: str
    rule: str
    writer: str
    reader: str


class SchemaDifference(Struct, frozen=True, kw_only=True):
    """What changed between two versions, and what that means for readers."""

    subject: str
    from_version: int
    to_version: int
    changes: list[Difference]
    new_cannot_read_old: list[Obstacle]
    old_cannot_read_new: list[Obstacle]


class Registry(Protocol):
    """The calls of the registry, on whichever port."""

    async def register(
        self,
        subject: str,
        definition: bytes,
        schema_type: str,
        *,
        description: str = "",
        created_by: str = "",
        tags: Sequence[str] = (),
    ) -> RegisteredSchema:
        """Add a version to a subject, or find the one that is equal."""

    async def latest(self, subject: str) -> SchemaVersion:
        """Return the latest version of a subject."""

    async def by_id(self, schema_id: int, version: int | None = None) -> SchemaVersion:
        """Return a version by its subject's id."""

    async def versions(self, subject: str) -> list[VersionSummary]:
        """Return the versions of a subject."""

    async def subjects(self) -> list[SubjectSummary]:
        """Return all subjects."""

    async def check(
        self, subject: str, definition: bytes, schema_type: str, mode: str | None = None
    ) -> CompatibilityReport:
        """Tell whether a definition could be the next version."""

    async def set_compatibility(self, subject: str, mode: str) -> None:
        """Set what later versions are held to."""

    async def delete_version(self, subject: str, version: int, *, force: bool = False) -> None:
        """Delete a version."""

    async def delete_subject(self, subject: str, *, force: bool = False) -> list[int]:
        """Delete a subject."""


class SchemaOperations:
    """What an operator does with schemas."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def register(
        self,
        subject: str,
        definition: bytes,
        schema_type: str,
        *,
        description: str = "",
        created_by: str = "",
        tags: Sequence[str] = (),
    ) -> RegisteredSchema:
        """Add a version to a subject, or find the one that is equal."""
        return await self._registry.register(
            subject,
            definition,
            schema_type,
            description=description,
            created_by=created_by,
            tags=tags,
        )

    async def get(
        self,
        *,
        subject: str | None = None,
        schema_id: int | None = None,
        version: int | None = None,
    ) -> ShownSchema:
        """Return a version, the latest if none is named, by subject or by id."""
        found = await self._find(subject, schema_id, version)
        fields = structs.asdict(found)
        fields["definition"] = found.definition.decode(errors="backslashreplace")
        return ShownSchema(**fields)

    async def _find(
        self, subject: str | None, schema_id: int | None, version: int | None
    ) -> SchemaVersion:
        if (subject is None) == (schema_id is None):
            raise InvalidRequest("name either a subject or an id")
        if schema_id is not None:
            return await self._registry.by_id(schema_id, version)
        assert subject is not None
        latest = await self._registry.latest(subject)
        if version is None or version == latest.version:
            return latest
        return await self._registry.by_id(latest.schema_id, version)

    async def versions(self, subject: str) -> list[VersionSummary]:
        """Return the versions of a subject, the oldest first."""
        return await self._registry.versions(subject)

    async def subjects(self) -> list[SubjectSummary]:
        """Return all subjects."""
        return await self._registry.subjects()

    async def check(
        self, subject: str, definition: bytes, schema_type: str, mode: str | None = None
    ) -> CompatibilityReport:
        """Tell whether a definition could be the next version; changes nothing."""
        return await self._registry.check(subject, definition, schema_type, mode)

    async def compatibility(self, subject: str) -> CompatibilityOf:
        """Return what later versions of a subject are held to."""
        for each in await self._registry.subjects():
            if each.subject == subject:
                return CompatibilityOf(subject=subject, compatibility_mode=each.compatibility_mode)
        raise NotFound(f"schema subject {subject} not found; register it first")

    async def set_compatibility(self, subject: str, mode: str) -> CompatibilityOf:
        """Set what later versions are held to."""
        await self._registry.set_compatibility(subject, mode)
        return CompatibilityOf(subject=subject, compatibility_mode=mode)

    async def delete_version(self, subject: str, version: int, *, force: bool) -> SchemaChange:
        """Delete a version; refused while a topic needs it, unless forced."""
        await self._registry.delete_version(subject, version, force=force)
        return SchemaChange(subject=subject, change="version deleted", versions=[version])

    async def delete_subject(self, subject: str, *, force: bool) -> SchemaChange:
        """Delete a subject with all its versions; refused while topics are bound to it."""
        versions = await self._registry.delete_subject(subject, force=force)
        return SchemaChange(subject=subject, change="subject deleted", versions=versions)

    async def diff(
        self, subject: str, from_version: int | None = None, to_version: int | None = None
    ) -> SchemaDifference:
        """Tell what changed between two versions: by default, from the last but one to the last."""
        numbers = [each.version for each in await self._registry.versions(subject)]
        if not numbers:
            raise NotFound(f"schema subject {subject} has no version; register one first")
        to_version = to_version or numbers[-1]
        earlier = [number for number in numbers if number < to_version]
        if from_version is None:
            if not earlier:
                raise NotFound(f"{subject} has no version before {to_version} to compare it with")
            from_version = earlier[-1]
        old = _parse(await self._find(subject, None, from_version))
        new = _parse(await self._find(subject, None, to_version))
        return SchemaDifference(
            subject=subject,
            from_version=from_version,
            to_version=to_version,
            changes=[
                Difference(place=each.path or _ROOT, change=each.what)
                for each in difference(old, new)
            ],
            new_cannot_read_old=_obstacles(writer=old, reader=new),
            old_cannot_read_new=_obstacles(writer=new, reader=old),
        )


def _obstacles(*, writer: Schema, reader: Schema) -> list[Obstacle]:
    return [
        Obstacle(
            place=each.path or _ROOT,
            rule=each.rule,
            writer=each.writer_side,
            reader=each.reader_side,
        )
        for each in compatibility(writer, reader)
    ]


def _parse(version: SchemaVersion) -> Schema:
    tools = SchemaTools(protobuf_compiler=ProcessProtobufCompiler())
    return load_format(version.schema_type, tools).parse(version.definition)
