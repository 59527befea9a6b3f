"""What a producer's messages name: a schema that is registered, or the one of their type."""

import msgspec
from msgspec import Struct

from pydanube.client.codecs import BYTES, Codec, Value
from pydanube.client.schemas import SchemaName, Schemas
from pydanube.errors import InvalidRequest
from pydanube.model.schemas import SchemaReference, check_reference


class ProducerSchema(Struct, frozen=True):
    """The reference a producer gives when it is created, and what its messages carry."""

    reference: SchemaReference
    name: SchemaName


def schema_reference(schema: str | SchemaReference) -> SchemaReference:
    """Return a reference; the name of a subject stands for its latest version."""
    if isinstance(schema, str):
        return SchemaReference(subject=schema)
    return check_reference(schema)


async def producer_schema(
    schemas: Schemas, schema: str | SchemaReference, codec: Codec[Value]
) -> ProducerSchema:
    """Find the schema a producer refers to; that of a type is registered first.

    A type stands for one version, so its producer refers to a subject and not to another version.
    """
    reference = schema_reference(schema)
    if codec is BYTES:
        return ProducerSchema(reference, await schemas.resolve(reference))
    if reference.version is not None or reference.min_version is not None:
        raise InvalidRequest(
            f"a producer with a type has the version of {reference.subject} that its type is; name "
            "the subject alone, or leave the type out"
        )
    registered = await schemas.register(reference.subject, definition_of(codec), codec.schema_type)
    pinned = SchemaReference(subject=reference.subject, version=registered.version)
    return ProducerSchema(pinned, SchemaName(registered.schema_id, registered.version))


async def check_consumer_type(
    schemas: Schemas, schema: str | SchemaReference, codec: Codec[Value]
) -> None:
    """Refuse a type that cannot read what the latest version of a subject describes."""
    subject = schema_reference(schema).subject
    if codec is BYTES:
        await schemas.get(subject)  # Bytes can hold anything, if there is such a thing.
        return
    await schemas.check_reader(subject, definition_of(codec), codec.schema_type)


def definition_of(codec: Codec[Value]) -> bytes:
    """Return the definition of what a codec writes; empty for formats that need none."""
    schema = codec.json_schema()
    return b"" if schema is None else msgspec.json.encode(schema)
