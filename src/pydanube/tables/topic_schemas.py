"""The schemas of a topic's messages, asked of the registry by callers that block."""

from types import TracebackType
from typing import Self

import pyarrow as pa
from typing_extensions import override

from pydanube.client.client import Client, connect
from pydanube.client.schema_calls import SchemaVersion
from pydanube.errors import InvalidRequest, NotFound
from pydanube.runtime.loop_thread import LoopThread
from pydanube.runtime.protobuf_compiler import ProcessProtobufCompiler
from pydanube.schemas.catalog import load_format
from pydanube.schemas.format import Schema, SchemaTools
from pydanube.schemas.kept import Kept
from pydanube.tables.columns import columns_of
from pydanube.tables.lake_types import lake_type
from pydanube.tables.ranges import TableSchemas

_KEPT_MAX = 256


class RegistryConnection:
    """The registry, for any number of topics, with an event loop of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._thread: LoopThread | None = None
        self._client: Client | None = None
        self._parsed: Kept[tuple[int, int], Schema] = Kept(_KEPT_MAX)
        self._tools = SchemaTools(protobuf_compiler=ProcessProtobufCompiler())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the registry."""
        thread, client, self._thread, self._client = self._thread, self._client, None, None
        if thread is not None:
            if client is not None:
                thread.call(client.close())
            thread.stop()

    def subject_of(self, topic: str) -> str | None:
        """Return the subject a topic is bound to; None: its payloads are bytes."""
        found = self._open()
        return found[0].call(found[1].schemas.topic_config(topic)).schema_subject

    def latest(self, subject: str) -> Schema | None:
        """Return the latest version of a subject; None: it has none."""
        thread, client = self._open()
        try:
            return self._parse(thread.call(client.schemas.get(subject)))
        except NotFound:
            return None

    def version(self, schema_id: int, version: int) -> Schema:
        """Return what messages carry."""
        thread, client = self._open()
        return self._parsed.get(
            (schema_id, version),
            lambda: self._parse(thread.call(client.schemas.get_by_id(schema_id, version))),
        )

    def ensure_topic(self, topic: str) -> None:
        """Create a reliable topic, unless there is one."""
        thread, client = self._open()
        thread.call(_produced(client, topic))

    def _parse(self, found: SchemaVersion) -> Schema:
        return self._parsed.get(
            (found.schema_id, found.version),
            lambda: load_format(found.schema_type, self._tools).parse(found.definition),
        )

    def _open(self) -> tuple[LoopThread, Client]:
        if self._thread is None or self._client is None:
            self._thread = LoopThread("danube-registry")
            self._client = self._thread.call(_opened(self._url))
        return self._thread, self._client


async def _opened(url: str) -> Client:
    return await connect(url)


async def _produced(client: Client, topic: str) -> None:
    async with client.producer(topic):
        return


class TopicSchemas(TableSchemas):
    """The schemas of one topic.

    A message that names a version is decoded by it; one that names none, by the latest of the
    topic's subject. Without a subject payloads are bytes.
    """

    def __init__(self, registry: RegistryConnection, topic: str) -> None:
        self._registry = registry
        self._topic = topic
        self._latest: Schema | None = None

    @override
    def refresh(self) -> None:
        subject = self._registry.subject_of(self._topic)
        self._latest = None if subject is None else self._registry.latest(subject)

    @override
    def of(self, schema_id: int | None, version: int | None) -> Schema | None:
        if schema_id is None:
            return self._latest
        if version is None:
            raise InvalidRequest(f"the message names schema {schema_id} and no version of it")
        return self._registry.version(schema_id, version)

    @override
    def columns(self) -> pa.Schema:
        self.refresh()
        return columns_of(None if self._latest is None else lake_type(self._latest.arrow_type()))
