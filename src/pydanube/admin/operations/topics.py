"""Verbs on topics."""

from msgspec import Struct

from pydanube.client.admin import AdminConnection
from pydanube.client.admin_answers import (
    ListedTopic,
    NewTopic,
    RetentionInForce,
    TopicDescription,
)
from pydanube.client.schema_calls import TopicSchemaConfig
from pydanube.errors import InvalidRequest, NotFound
from pydanube.model.names import check_namespace_name, check_topic_name
from pydanube.model.policies import DispatchStrategy, Durability, OwnRetention


class TopicChange(Struct, frozen=True, kw_only=True):
    """What was done to a topic."""

    topic: str
    change: str
    partitions: int | None = None


class TopicOperations:
    """What an operator does with topics; names are full, such as /default/orders."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def list_of_namespace(self, namespace: str) -> list[ListedTopic]:
        """Return a namespace's topics."""
        return await self._connection.topics_of_namespace(check_namespace_name(namespace))

    async def list_of_broker(self, broker_id: str) -> list[ListedTopic]:
        """Return the topics that a broker serves."""
        return await self._connection.topics_of_broker(broker_id)

    async def create(
        self,
        topic: str,
        *,
        dispatch: DispatchStrategy = "NonReliable",
        partitions: int | None = None,
        durability: Durability | None = None,
        schema_subject: str | None = None,
    ) -> TopicChange:
        """Create a topic, or all its partitions."""
        if partitions is not None and partitions < 1:
            raise InvalidRequest("a partitioned topic has at least one partition")
        if durability is not None and dispatch != "Reliable":
            raise InvalidRequest(
                "only reliable topics are stored, so only they have a durability: "
                "add --dispatch-strategy reliable"
            )
        await self._connection.create_topic(
            NewTopic(
                name=check_topic_name(topic),
                dispatch=dispatch,
                partitions=partitions,
                durability=durability,
                schema_subject=schema_subject,
            )
        )
        return TopicChange(topic=topic, change="created", partitions=partitions)

    async def delete(self, topic: str) -> TopicChange:
        """Delete a topic with all its partitions, messages and subscriptions."""
        await self._connection.delete_topic(check_topic_name(topic))
        return TopicChange(topic=topic, change="deleted")

    async def describe(self, topic: str) -> TopicDescription:
        """Return what is known about a topic."""
        description = await self._connection.describe_topic(check_topic_name(topic))
        # Brokers answer for unknown topics too, and say nothing.
        if not (description.broker_id or description.subscriptions or description.partitions):
            raise NotFound(f"there is no topic {topic}")
        return description

    async def set_message_ttl(self, topic: str, ttl_ms: int | None) -> TopicChange:
        """Say how long messages may be delivered: 0 for ever, None as the namespace says."""
        await self._connection.set_message_ttl(ttl_ms, topic=check_topic_name(topic))
        return TopicChange(topic=topic, change="changed")

    async def set_replicas(self, topic: str, replicas: int | None) -> TopicChange:
        """Say in how many journals messages are: 0 as configured, None as the namespace says."""
        await self._connection.set_replicas(replicas, topic=check_topic_name(topic))
        return TopicChange(topic=topic, change="changed")

    async def retention(self, topic: str) -> RetentionInForce:
        """Tell how long the history of a topic stays."""
        return await self._connection.retention(topic=check_topic_name(topic))

    async def set_retention(self, topic: str, rule: OwnRetention) -> RetentionInForce:
        """Say how long the history of a topic stays: 0 for ever, None as the namespace says."""
        return await self._connection.set_retention(rule, topic=check_topic_name(topic))

    async def configure_schema(
        self, topic: str, subject: str, policy: str, *, validates_payloads: bool
    ) -> TopicSchemaConfig:
        """Bind a topic, or all its partitions, to a schema subject, and say how strict it is."""
        await self._connection.schemas.configure_topic(
            check_topic_name(topic), subject, policy, validates_payloads=validates_payloads
        )
        return await self.schema_config(topic)

    async def set_validation_policy(
        self, topic: str, policy: str, *, validates_payloads: bool
    ) -> TopicSchemaConfig:
        """Say how strict a topic is that is bound to a schema subject."""
        await self._connection.schemas.set_validation_policy(
            check_topic_name(topic), policy, validates_payloads=validates_payloads
        )
        return await self.schema_config(topic)

    async def schema_config(self, topic: str) -> TopicSchemaConfig:
        """Return what a topic asks of its messages."""
        return await self._connection.schemas.topic_config(check_topic_name(topic))

    async def unload(self, topic: str) -> TopicChange:
        """Hand a topic over to another broker."""
        await self._connection.unload_topic(check_topic_name(topic))
        return TopicChange(topic=topic, change="unloaded")


def full_topic_name(topic: str, namespace: str | None) -> str:
    """Return the full name of a topic given as /namespace/topic, or as topic and namespace."""
    if namespace is None:
        if not topic.startswith("/"):
            raise InvalidRequest(
                f"{topic!r} is no full name: write /default/{topic}, or add --namespace default"
            )
        return check_topic_name(topic)
    if topic.startswith("/"):
        if not topic.startswith(f"/{namespace}/"):
            raise InvalidRequest(f"{topic} is not in namespace {namespace}")
        return check_topic_name(topic)
    return check_topic_name(f"/{namespace}/{topic}")
