"""Binds topics to schema subjects: by their first producer, or by an operator."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from msgspec import Struct, structs

from pydanube.errors import Conflict, NotFound, Unavailable
from pydanube.model.schemas import SchemaReference, ValidationPolicy
from pydanube.registry.errors import SchemaNotFound
from pydanube.registry.registry import ResolvedSchema, SchemaRegistry
from pydanube.topics.catalog import TopicRecord
from pydanube.topics.errors import SchemaMismatch
from pydanube.topics.manager import TopicManager
from pydanube.topics.topic import Topic

ATTEMPTS_MAX = 100

HoldTopic = Callable[[str], AbstractAsyncContextManager[None]]
"""Keeps everybody else out who would change a topic's record."""


class TopicSchemaConfig(Struct, frozen=True, kw_only=True):
    """What a topic is bound to, and how strict it is."""

    subject: str | None
    schema_id: int | None
    policy: ValidationPolicy
    validates_payloads: bool


class TopicSchemas:
    """Changes what topics ask of their messages. A change is durable before it applies."""

    def __init__(self, topics: TopicManager, registry: SchemaRegistry, hold: HoldTopic) -> None:
        self._topics = topics
        self._registry = registry
        self._hold = hold

    # Producers.

    def resolve(self, reference: SchemaReference, topic: Topic | None) -> ResolvedSchema:
        """Return what a producer's reference stands for; SchemaMismatch if the topic refuses it."""
        try:
            resolved = self._registry.resolve(reference)
        except SchemaNotFound as error:
            raise SchemaMismatch(str(error)) from error
        if topic is not None:
            self._check_subject(topic, reference.subject)
        return resolved

    async def attach(self, topic: Topic, schema: ResolvedSchema) -> None:
        """Note that a producer of a topic has a schema; the first one binds the topic.

        Whoever calls holds the topic.
        """
        self._check_subject(topic, schema.subject)
        record = structs.replace(topic.record, schema_subject=schema.subject)
        await self._write(topic, record, schema.version)

    def _check_subject(self, topic: Topic, subject: str) -> None:
        bound = topic.record.schema_subject
        if bound is not None and bound != subject:
            raise SchemaMismatch(
                f"topic {topic.name} has schema subject {bound}; producers cannot use {subject}"
            )

    # Operators.

    async def configure(
        self, name: str, subject: str, policy: ValidationPolicy, *, validates_payloads: bool
    ) -> None:
        """Bind a topic, or all its partitions, to a subject, and say how strict it is."""
        if self._registry.subject(subject) is None:
            raise SchemaNotFound(f"schema subject {subject[:256]} not found; register it first")
        for each in self._served(name):
            await self._change(
                each,
                schema_subject=subject,
                validation_policy=policy,
                validates_payloads=validates_payloads,
            )

    async def set_policy(
        self, name: str, policy: ValidationPolicy, *, validates_payloads: bool
    ) -> None:
        """Say how strict a topic is, or all its partitions."""
        names = self._served(name)
        for each in names:
            if self._topics.get(each).record.schema_subject is None:
                raise Conflict(
                    f"topic {each} is bound to no schema subject; configure one for it first"
                )
        for each in names:
            await self._change(
                each, validation_policy=policy, validates_payloads=validates_payloads
            )

    def config(self, name: str) -> TopicSchemaConfig:
        """Return what a topic is bound to; of a partitioned one, its first partition."""
        record = self._topics.get(self._served(name)[0]).record
        subject = record.schema_subject
        known = None if subject is None else self._registry.subject(subject)
        return TopicSchemaConfig(
            subject=subject,
            schema_id=None if known is None else known.id,
            policy=record.validation_policy,
            validates_payloads=record.validates_payloads,
        )

    def _served(self, name: str) -> list[str]:
        names = self._topics.partitions(name)
        if not names:
            raise NotFound(f"topic {name} does not exist on this broker")
        return names

    async def _change(self, name: str, **changes: object) -> None:
        async with self._hold(name):
            topic = self._topics.get(name)
            await self._write(topic, structs.replace(topic.record, **changes), None)

    # Writing.

    async def _write(self, topic: Topic, record: TopicRecord, version: int | None) -> None:
        """Write a topic's record together with what the registry knows of it, then apply it."""
        assert record.schema_subject is not None, "a topic keeps the subject it has"
        before = topic.record.schema_subject
        released = before if before != record.schema_subject else None
        for _ in range(ATTEMPTS_MAX):
            if version is not None:
                self._check_exists(record.schema_subject, version)
            binding = self._registry.plan_use(record.schema_subject, topic.name, version)
            if binding is None and record == topic.record:
                return
            try:
                await self._topics.catalog.bind_topic(topic.name, record, binding, released)
            except Conflict as error:
                if type(error) is not Conflict:
                    raise
            else:
                changed = record.schema != topic.record.schema
                topic.record = record
                if changed:
                    topic.set_schema(record.schema)
                return
        raise Unavailable(f"schema subject {record.schema_subject} changes all the time; try again")

    def _check_exists(self, subject: str, version: int) -> None:
        """Refuse a version that was deleted since it was resolved."""
        known = self._registry.subject(subject)
        if known is None or known.entry(version) is None:
            raise SchemaMismatch(f"version {version} of schema subject {subject} not found")
