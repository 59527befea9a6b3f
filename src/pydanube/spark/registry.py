"""Schemas for readers and writers: asked of the registry, parsed once per process."""

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from msgspec import Struct

from pydanube.client.client import connect
from pydanube.client.schema_calls import SchemaVersion
from pydanube.client.schemas import Schemas
from pydanube.errors import InvalidRequest, NotFound
from pydanube.runtime.process import run
from pydanube.runtime.protobuf_compiler import ProcessProtobufCompiler
from pydanube.schemas.catalog import load_format
from pydanube.schemas.format import Schema, SchemaTools
from pydanube.spark.options import Access
from pydanube.spark.registry_channel import channels_of

KEPT_MAX = 256

_Result = TypeVar("_Result")


class ReaderSchema(Struct, frozen=True, kw_only=True):
    """The schema that decoded values have, fixed when a read is planned."""

    subject: str
    schema_id: int
    version: int
    format: str
    canonical: bytes

    def schema(self) -> Schema:
        """Return it parsed; needs neither registry nor compiler."""
        return parse_schema(self.format, self.canonical)


def reader_schema(access: Access, topics: Sequence[str], version: int | None) -> ReaderSchema:
    """Return the schema of the subject that all topics are bound to."""
    subjects: dict[str, list[str]] = {}
    for topic in topics:
        subject = _subject_of(access, topic)
        if subject is None:
            raise InvalidRequest(
                f"option decode is schema, and topic {topic} is bound to no subject of the "
                "registry; bind it (danube schema configure-topic), or read it with decode=raw"
            )
        subjects.setdefault(subject, []).append(topic)
    if not subjects:
        raise InvalidRequest("option decode is schema, and there is no topic yet to decode")
    if len(subjects) > 1:
        raise InvalidRequest(
            f"option decode is schema, and the topics have different subjects: "
            f"{', '.join(sorted(subjects))}; read them one subject at a time"
        )
    (subject,) = subjects
    return subject_schema(access, subject, version)


def subject_schema(access: Access, subject: str, version: int | None) -> ReaderSchema:
    """Return a version of a subject, by default the latest."""
    found = ask(access, lambda schemas: schemas.get(subject, version))
    parsed = parse_schema(found.schema_type, found.definition)
    return ReaderSchema(
        subject=subject,
        schema_id=found.schema_id,
        version=found.version,
        format=found.schema_type,
        canonical=parsed.canonical,
    )


@lru_cache(KEPT_MAX)
def latest_schema(access: Access, subject: str) -> SchemaVersion:
    """Return the latest version of a subject, as this process first found it."""
    return ask(access, lambda schemas: schemas.get(subject))


@lru_cache(KEPT_MAX)
def writer_schema(access: Access, schema_id: int, version: int) -> Schema:
    """Return what messages were written by; NotFound if the registry does not know it any more."""
    found = ask(access, lambda schemas: schemas.get_by_id(schema_id, version))
    return parse_schema(found.schema_type, found.definition)


def ask(access: Access, question: Callable[[Schemas], Awaitable[_Result]]) -> _Result:
    """Ask the registry, in a process without an event loop."""

    open_channel = channels_of(access)

    async def connected() -> _Result:
        async with connect(",".join(access.urls), open_channel=open_channel) as client:
            return await question(client.schemas)

    return run(connected())


def _subject_of(access: Access, topic: str) -> str | None:
    try:
        config = ask(access, lambda schemas: schemas.topic_config(topic))
    except NotFound:
        return None
    return config.schema_subject


@lru_cache(KEPT_MAX)
def parse_schema(schema_format: str, definition: bytes) -> Schema:
    """Return a definition parsed; Protobuf text starts a compiler's process."""
    tools = SchemaTools(protobuf_compiler=ProcessProtobufCompiler())
    return load_format(schema_format, tools).parse(definition)
