"""The schema registry, called by hand, and schemas to call it with."""

import json
from typing import Any

from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.generated import SchemaRegistry_pb2 as schema
from tests.support.raw_client import RawClient


def json_schema(*required: str, **types: str) -> bytes:
    """Return a JSON Schema of an object with fields of these types."""
    properties = {name: {"type": kind} for name, kind in types.items()}
    return json.dumps(
        {"type": "object", "properties": properties, "required": list(required)}
    ).encode()


ORDER = json_schema("id", id="integer")
ORDER_WITH_NOTE = json_schema("id", id="integer", note="string")
ORDER_RENUMBERED = json_schema("id", id="string")
"""Not compatible with either."""


def registration(
    subject: str, definition: bytes = ORDER, kind: str = "json_schema", **fields: Any
) -> schema.RegisterSchemaRequest:
    return schema.RegisterSchemaRequest(
        subject=subject, schema_type=kind, schema_definition=definition, **fields
    )


async def register(
    client: RawClient,
    subject: str,
    definition: bytes = ORDER,
    kind: str = "json_schema",
    **fields: Any,
) -> schema.RegisterSchemaResponse:
    request = registration(subject, definition, kind, **fields)
    return await client.call(services.REGISTER_SCHEMA, request)


async def latest(client: RawClient, subject: str) -> schema.GetSchemaResponse:
    request = schema.GetLatestSchemaRequest(subject=subject)
    return await client.call(services.GET_LATEST_SCHEMA, request)


async def versions(client: RawClient, subject: str) -> list[int]:
    request = schema.ListVersionsRequest(subject=subject)
    reply = await client.call(services.LIST_VERSIONS, request)
    return [each.version for each in reply.versions]


async def configure(
    client: RawClient, topic: str, subject: str, policy: str = "enforce", *, payloads: bool = True
) -> None:
    request = schema.ConfigureTopicSchemaRequest(
        topic_name=topic,
        schema_subject=subject,
        validation_policy=policy,
        enable_payload_validation=payloads,
    )
    assert (await client.call(services.CONFIGURE_TOPIC_SCHEMA, request)).success


async def set_mode(client: RawClient, subject: str, mode: str) -> None:
    request = schema.SetCompatibilityModeRequest(subject=subject, compatibility_mode=mode)
    assert (await client.call(services.SET_COMPATIBILITY_MODE, request)).success


def deletion(subject: str, version: int, **fields: Any) -> schema.DeleteSchemaVersionRequest:
    return schema.DeleteSchemaVersionRequest(subject=subject, version=version, **fields)


def reference(subject: str, **version: Any) -> api.SchemaReference:
    return api.SchemaReference(subject=subject, **version)
