"""Schemas for applications: register and find them, and refer to them when producing."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from pydanube.client.brokers import Brokers
from pydanube.client.message import ReceivedMessage
from pydanube.client.schema_calls import (
    CompatibilityReport,
    RegisteredSchema,
    SchemaCalls,
    SchemaVersion,
    SubjectSummary,
    TopicSchemaConfig,
    VersionSummary,
)
from pydanube.errors import Conflict, DanubeError, InvalidRequest, NotFound
from pydanube.model.schemas import (
    VERSION_ASSUMED,
    SchemaReference,
    ValidationPolicy,
    check_reference,
)
from pydanube.runtime.threads import WorkerThreads

if TYPE_CHECKING:
    from pydanube.schemas.format import Schema

KEPT_MAX = 1_024
PARSED_MAX = 256
_REASONS_MAX = 5
CREATED_BY = "pydanube"

Result = TypeVar("Result")


class SchemaName(Struct, frozen=True):
    """What messages carry: they were written by this version of the subject with this id."""

    schema_id: int
    version: int


class Schemas:
    """The schema registry of the cluster a client is connected to.

    A version never changes, so those that were found are kept, the latest used ones of them.
    """

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._kept: dict[SchemaName, SchemaVersion] = {}
        self._schemas: dict[SchemaName, Schema] = {}
        self._threads = WorkerThreads("danube-schemas", 1)

    @property
    def calls(self) -> SchemaCalls:
        """The calls of the broker the client was given, as they are."""
        return self._brokers.service.schemas

    async def register(
        self,
        subject: str,
        definition: bytes | str,
        schema_type: str = "json_schema",
        *,
        description: str = "",
        created_by: str = CREATED_BY,
        tags: Sequence[str] = (),
    ) -> RegisteredSchema:
        """Add a version to a subject, created when absent, or find the one that is equal.

        Conflict if it is not compatible with the earlier ones; the error names place and rule.
        """
        data = definition.encode() if isinstance(definition, str) else definition
        return await self._ask(
            lambda calls: calls.register(
                subject,
                data,
                schema_type,
                description=description,
                created_by=created_by,
                tags=tags,
            )
        )

    async def get(self, subject: str, version: int | None = None) -> SchemaVersion:
        """Return a version of a subject; the latest if none is named."""
        latest = await self._ask(lambda calls: calls.latest(subject))
        self._keep(latest)
        if version is None or version == latest.version:
            return latest
        return await self.get_by_id(latest.schema_id, version)

    async def get_by_id(self, schema_id: int, version: int | None = None) -> SchemaVersion:
        """Return what a message carries: the version of the subject with that id."""
        if version is not None:
            known = self._kept.get(SchemaName(schema_id, version))
            if known is not None:
                return known
        return self._keep(await self._ask(lambda calls: calls.by_id(schema_id, version)))

    async def versions(self, subject: str) -> list[VersionSummary]:
        """Return the versions of a subject, the oldest first."""
        return await self._ask(lambda calls: calls.versions(subject))

    async def subjects(self) -> list[SubjectSummary]:
        """Return all subjects."""
        return await self._ask(lambda calls: calls.subjects())

    async def check(
        self,
        subject: str,
        definition: bytes | str,
        schema_type: str = "json_schema",
        *,
        mode: str | None = None,
    ) -> CompatibilityReport:
        """Tell whether a definition could be the next version; changes nothing."""
        data = definition.encode() if isinstance(definition, str) else definition
        return await self._ask(lambda calls: calls.check(subject, data, schema_type, mode))

    async def set_compatibility(self, subject: str, mode: str) -> None:
        """Set what later versions are held to.

        none, backward, forward, full, or one of the last three with _transitive behind it.
        """
        await self._ask(lambda calls: calls.set_compatibility(subject, mode))

    async def delete_version(self, subject: str, version: int, *, force: bool = False) -> None:
        """Delete a version; Conflict while a topic needs it, unless forced."""
        await self._ask(lambda calls: calls.delete_version(subject, version, force=force))

    async def delete_subject(self, subject: str, *, force: bool = False) -> list[int]:
        """Delete a subject, and return the versions it had; Conflict while topics are bound."""
        return await self._ask(lambda calls: calls.delete_subject(subject, force=force))

    async def configure_topic(
        self,
        topic: str,
        subject: str,
        *,
        policy: ValidationPolicy = "enforce",
        validate_payloads: bool = True,
    ) -> None:
        """Bind a topic, or all its partitions, to a subject, and say how strict it is."""
        await self._ask(
            lambda calls: calls.configure_topic(
                topic, subject, policy, validates_payloads=validate_payloads
            ),
            topic,
        )

    async def set_validation_policy(
        self, topic: str, policy: ValidationPolicy, *, validate_payloads: bool = True
    ) -> None:
        """Say how strict a topic is that is bound to a subject."""
        await self._ask(
            lambda calls: calls.set_validation_policy(
                topic, policy, validates_payloads=validate_payloads
            ),
            topic,
        )

    async def topic_config(self, topic: str) -> TopicSchemaConfig:
        """Return what a topic asks of its messages."""
        return await self._ask(lambda calls: calls.topic_config(topic), topic)

    async def resolve(self, reference: SchemaReference) -> SchemaName:
        """Return what messages of a producer with that reference carry."""
        latest = await self.get(check_reference(reference).subject)
        version = reference.version
        if reference.min_version is not None and latest.version < reference.min_version:
            raise NotFound(
                f"{reference.subject} has not reached version {reference.min_version}; the latest "
                f"is {latest.version}"
            )
        if version is not None:
            latest = await self.get_by_id(latest.schema_id, version)
        return SchemaName(latest.schema_id, latest.version)

    # Payloads.

    async def decode(self, message: ReceivedMessage) -> object:
        """Return a message's payload as values, by the schema that the message names.

        Records and objects become dicts. InvalidRequest if it names none, or the payload is not
        what the schema says.
        """
        if message.schema_id is None:
            raise InvalidRequest(
                f"message {message.offset} of {message.topic} names no schema; decode its payload "
                "by yourself"
            )
        version = message.schema_version or VERSION_ASSUMED
        schema = await self._parsed(await self.get_by_id(message.schema_id, version))
        decoded = schema.decode([message.payload])
        if decoded.failures:
            raise InvalidRequest(
                f"message {message.offset} of {message.topic} does not match version "
                f"{version} of schema {message.schema_id}: {decoded.failures[0].reason}"
            )
        return decoded.values[0].as_py()

    async def check_reader(self, subject: str, definition: bytes, schema_type: str) -> None:
        """Refuse a definition that cannot read what the latest version of a subject describes."""
        from pydanube.schemas.compatibility import compatibility

        latest = await self.get(subject)
        writer = await self._parsed(latest)
        reader = await self._parse(schema_type, definition)
        reasons = compatibility(writer, reader)
        if reasons:
            raise Conflict(
                f"this type cannot read version {latest.version} of {subject}: "
                f"{'; '.join(map(str, reasons[:_REASONS_MAX]))}"
            )

    async def _parsed(self, found: SchemaVersion) -> "Schema":
        name = SchemaName(found.schema_id, found.version)
        schema = self._schemas.get(name)
        if schema is None:
            schema = await self._parse(found.schema_type, found.definition)
            self._schemas[name] = schema
            if len(self._schemas) > PARSED_MAX:
                self._schemas.pop(next(iter(self._schemas)))
        return schema

    async def _parse(self, schema_type: str, definition: bytes) -> "Schema":
        from pydanube.runtime.protobuf_compiler import ProcessProtobufCompiler
        from pydanube.schemas.catalog import load_format  # Arrow, for those who use it.
        from pydanube.schemas.format import SchemaTools

        rules = load_format(schema_type, SchemaTools(protobuf_compiler=ProcessProtobufCompiler()))
        return await self._threads.run(lambda: rules.parse(definition))

    def _keep(self, found: SchemaVersion) -> SchemaVersion:
        self._kept[SchemaName(found.schema_id, found.version)] = found
        if len(self._kept) > KEPT_MAX:
            self._kept.pop(next(iter(self._kept)))
        return found

    async def _ask(
        self,
        ask: Callable[[SchemaCalls], Awaitable[Result]],
        topic: str | None = None,
    ) -> Result:
        """Ask the broker that serves a topic, or any, as often as the retry policy allows."""
        attempt = 0
        while True:
            connection = self._brokers.service
            if topic is not None:
                connection = await self._brokers.serving(topic, connection)
            try:
                return await ask(connection.schemas)
            except DanubeError as error:
                if not (error.retryable and self._brokers.surroundings.retry.allows(attempt)):
                    raise
            self._brokers.ask_another()
            await self._brokers.pause(attempt)
            attempt += 1
