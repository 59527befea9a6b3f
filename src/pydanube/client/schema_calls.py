"""The schema registry as typed calls: our own types in and out, on either port of a broker."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec
from google.protobuf.message import Message as ProtoMessage
from msgspec import Struct

from pydanube.errors import DanubeError
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from pydanube.wire.danube.generated import SchemaRegistry_pb2 as pb

Request = TypeVar("Request", bound=ProtoMessage)
Response = TypeVar("Response", bound=ProtoMessage)


class RegisteredSchema(Struct, frozen=True, kw_only=True):
    """What became of a registration."""

    subject: str
    schema_id: int
    version: int
    is_new_version: bool
    """False: an equal definition was there before."""
    fingerprint: str


class SchemaVersion(Struct, frozen=True, kw_only=True):
    """One schema."""

    subject: str
    schema_id: int
    """Of the subject; all its versions have it."""
    version: int
    schema_type: str
    definition: bytes
    """As it was registered."""
    fingerprint: str
    compatibility_mode: str
    """Of the subject."""
    description: str
    tags: list[str]
    created_at: int
    """Seconds since 1970."""
    created_by: str


class VersionSummary(Struct, frozen=True, kw_only=True):
    """One version in a list."""

    version: int
    schema_id: int
    fingerprint: str
    description: str
    created_at: int
    created_by: str


class SubjectSummary(Struct, frozen=True, kw_only=True):
    """One subject in a list."""

    subject: str
    schema_id: int
    schema_type: str
    latest_version: int
    """0: all its versions are deleted."""
    compatibility_mode: str
    tags: list[str]


class CompatibilityReport(Struct, frozen=True, kw_only=True):
    """Whether a definition could be the next version."""

    is_compatible: bool
    errors: list[str]


class TopicSchemaConfig(Struct, frozen=True, kw_only=True):
    """What a topic asks of its messages."""

    topic: str
    schema_subject: str | None
    schema_id: int | None
    validation_policy: str
    enable_payload_validation: bool


class Call(Protocol):
    """Makes a call to a broker; errors are DanubeErrors."""

    async def __call__(
        self, method: services.Method[Request, Response], request: Request
    ) -> Response:
        """Return the reply."""


class SchemaCalls:
    """Every call of the registry."""

    def __init__(self, call: Call) -> None:
        self._call = call

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
        request = pb.RegisterSchemaRequest(
            subject=subject,
            schema_type=schema_type,
            schema_definition=definition,
            description=description,
            created_by=created_by,
            tags=tags,
        )
        reply = await self._call(services.REGISTER_SCHEMA, request)
        return RegisteredSchema(
            subject=subject,
            schema_id=reply.schema_id,
            version=reply.version,
            is_new_version=reply.is_new_version,
            fingerprint=reply.fingerprint,
        )

    async def latest(self, subject: str) -> SchemaVersion:
        """Return the latest version of a subject."""
        request = pb.GetLatestSchemaRequest(subject=subject)
        return _version(await self._call(services.GET_LATEST_SCHEMA, request))

    async def by_id(self, schema_id: int, version: int | None = None) -> SchemaVersion:
        """Return a version by its subject's id; the latest if none is named."""
        request = pb.GetSchemaRequest(schema_id=schema_id, version=version)
        return _version(await self._call(services.GET_SCHEMA, request))

    async def versions(self, subject: str) -> list[VersionSummary]:
        """Return the versions of a subject, the oldest first."""
        reply = await self._call(services.LIST_VERSIONS, pb.ListVersionsRequest(subject=subject))
        return [
            VersionSummary(
                version=each.version,
                schema_id=each.schema_id,
                fingerprint=each.fingerprint,
                description=each.description,
                created_at=each.created_at,
                created_by=each.created_by,
            )
            for each in reply.versions
        ]

    async def subjects(self) -> list[SubjectSummary]:
        """Return all subjects."""
        reply = await self._call(services.LIST_SUBJECTS, pb.ListSubjectsRequest())
        return [
            SubjectSummary(
                subject=each.subject,
                schema_id=each.schema_id,
                schema_type=each.schema_type,
                latest_version=each.latest_version,
                compatibility_mode=each.compatibility_mode,
                tags=list(each.tags),
            )
            for each in reply.subjects
        ]

    async def check(
        self, subject: str, definition: bytes, schema_type: str, mode: str | None = None
    ) -> CompatibilityReport:
        """Tell whether a definition could be the next version; changes nothing."""
        request = pb.CheckCompatibilityRequest(
            subject=subject,
            new_schema_definition=definition,
            schema_type=schema_type,
            compatibility_mode=mode,
        )
        reply = await self._call(services.CHECK_COMPATIBILITY, request)
        return CompatibilityReport(is_compatible=reply.is_compatible, errors=list(reply.errors))

    async def set_compatibility(self, subject: str, mode: str) -> None:
        """Set what later versions are held to."""
        request = pb.SetCompatibilityModeRequest(subject=subject, compatibility_mode=mode)
        reply = await self._call(services.SET_COMPATIBILITY_MODE, request)
        _require(reply.success, reply.message)

    async def delete_version(self, subject: str, version: int, *, force: bool = False) -> None:
        """Delete a version; refused while a topic needs it, unless forced."""
        request = pb.DeleteSchemaVersionRequest(subject=subject, version=version, force=force)
        reply = await self._call(services.DELETE_SCHEMA_VERSION, request)
        _require(reply.success, reply.message)

    async def delete_subject(self, subject: str, *, force: bool = False) -> list[int]:
        """Delete a subject, and return the versions it had; NotSupported: not this broker."""
        request = own.DeleteSubjectRequest(subject=subject, force=force)
        return list((await self._call(services.DELETE_SUBJECT, request)).versions)

    async def configure_topic(
        self, topic: str, subject: str, policy: str, *, validates_payloads: bool
    ) -> None:
        """Bind a topic to a subject, and say how strict it is."""
        request = pb.ConfigureTopicSchemaRequest(
            topic_name=topic,
            schema_subject=subject,
            validation_policy=policy,
            enable_payload_validation=validates_payloads,
        )
        reply = await self._call(services.CONFIGURE_TOPIC_SCHEMA, request)
        _require(reply.success, reply.message)

    async def set_validation_policy(
        self, topic: str, policy: str, *, validates_payloads: bool
    ) -> None:
        """Say how strict a topic is."""
        request = pb.UpdateTopicValidationPolicyRequest(
            topic_name=topic,
            validation_policy=policy,
            enable_payload_validation=validates_payloads,
        )
        reply = await self._call(services.UPDATE_TOPIC_VALIDATION_POLICY, request)
        _require(reply.success, reply.message)

    async def topic_config(self, topic: str) -> TopicSchemaConfig:
        """Return what a topic asks of its messages."""
        request = pb.GetTopicSchemaConfigRequest(topic_name=topic)
        reply = await self._call(services.GET_TOPIC_SCHEMA_CONFIG, request)
        return TopicSchemaConfig(
            topic=topic,
            schema_subject=reply.schema_subject or None,
            schema_id=reply.schema_id or None,
            validation_policy=reply.validation_policy,
            enable_payload_validation=reply.enable_payload_validation,
        )


def _version(reply: pb.GetSchemaResponse) -> SchemaVersion:
    return SchemaVersion(
        subject=reply.subject,
        schema_id=reply.schema_id,
        version=reply.version,
        schema_type=reply.schema_type,
        definition=unwrapped(reply.schema_definition),
        fingerprint=reply.fingerprint,
        compatibility_mode=reply.compatibility_mode,
        description=reply.description,
        tags=list(reply.tags),
        created_at=reply.created_at,
        created_by=reply.created_by,
    )


class _Envelope(Struct):
    raw_schema: str | None = None
    raw_proto: str | None = None


_ENVELOPE_KINDS = (b'{"JsonSchema":', b'{"Avro":', b'{"Protobuf":')


def unwrapped(definition: bytes) -> bytes:
    """Return the text that was registered: other brokers than ours send it in an envelope."""
    if not definition.startswith(_ENVELOPE_KINDS):
        return definition
    try:
        (envelope,) = msgspec.json.decode(definition, type=dict[str, _Envelope]).values()
    except (msgspec.DecodeError, ValueError):
        return definition
    text = envelope.raw_schema if envelope.raw_schema is not None else envelope.raw_proto
    return definition if text is None else text.encode()


def _require(success: bool, message: str) -> None:
    if not success:
        raise DanubeError(f"the broker refused: {message or 'it does not say why'}")
