"""TopicAdmin: topics, subscriptions and how they treat failures."""

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from pydanube.broker.servicers.standings import (
    failure_policy_message,
    failure_policy_of,
    standing_messages,
)
from pydanube.errors import InvalidRequest, NotFound, NotSupported, WrongBroker
from pydanube.model.ids import BrokerId
from pydanube.model.names import check_client_name, namespace_of
from pydanube.model.policies import (
    DispatchConfig,
    DispatchStrategy,
    Durability,
)
from pydanube.registry.records import SubjectRecord
from pydanube.registry.registry import SchemaRegistry
from pydanube.topics.catalog import TopicRecord
from pydanube.topics.manager import TopicManager, TopicRequest
from pydanube.topics.registration import Registration
from pydanube.topics.topic import Topic
from pydanube.wire.calls import Call, HandlerTable
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.services import serve

if TYPE_CHECKING:
    from pydanube.broker.clustering import Clustering

_STRATEGIES: dict[int, DispatchStrategy] = {0: "NonReliable", 1: "Reliable"}
_DURABILITIES: dict[str, Durability] = {"fsync": "fsync", "os": "os", "memory": "memory"}

_KIND_NUMBERS = {"Exclusive": 0, "Shared": 1, "Failover": 2, "KeyShared": 3}


class TopicAdminServicer:
    """Translates, delegates, translates back."""

    def __init__(
        self,
        topics: TopicManager,
        registration: Registration,
        schemas: SchemaRegistry,
        broker_id: BrokerId,
        cluster: "Clustering | None" = None,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._registration = registration
        self._schemas = schemas
        self._broker_id = str(broker_id)

    def register(self, table: HandlerTable) -> None:
        """Serve the methods of TopicAdmin."""
        serve(table, services.LIST_NAMESPACE_TOPICS, self.list_namespace_topics)
        serve(table, services.LIST_BROKER_TOPICS, self.list_broker_topics)
        serve(table, services.CREATE_TOPIC, self.create_topic)
        serve(table, services.CREATE_PARTITIONED_TOPIC, self.create_partitioned_topic)
        serve(table, services.DELETE_TOPIC, self.delete_topic)
        serve(table, services.UNLOAD_TOPIC, self.unload_topic)
        serve(table, services.LIST_SUBSCRIPTIONS, self.list_subscriptions)
        serve(table, services.UNSUBSCRIBE, self.unsubscribe)
        serve(table, services.SET_SUBSCRIPTION_FAILURE_POLICY, self.set_failure_policy)
        serve(table, services.GET_SUBSCRIPTION_FAILURE_POLICY, self.get_failure_policy)
        serve(table, services.DESCRIBE_TOPIC, self.describe_topic)
        serve(table, services.SET_SUBSCRIPTION_DISPATCH_CONFIG, self.set_dispatch_config)
        serve(table, services.GET_SUBSCRIPTION_DISPATCH_CONFIG, self.get_dispatch_config)

    # Topics.

    async def list_namespace_topics(
        self, request: admin.NamespaceRequest, call: Call
    ) -> admin.TopicInfoListResponse:
        """Describe a namespace's topics in a line each."""
        self._topics.namespace_policies(request.name)
        found = [
            (name, record)
            for name, record in self._topics.catalog.topics()
            if namespace_of(name) == request.name and not record.deleting
        ]
        return self._infos(found)

    async def list_broker_topics(
        self, request: admin.BrokerRequest, call: Call
    ) -> admin.TopicInfoListResponse:
        """Describe a broker's topics in a line each."""
        known = {self._broker_id}
        if self._cluster is not None:
            known |= {str(each) for each in self._cluster.directory.view.brokers}
        if request.broker_id not in known:
            raise NotFound(
                f"broker {request.broker_id} is not known; there are {', '.join(sorted(known))}"
            )
        found = [
            (name, record)
            for name, record in self._topics.catalog.topics()
            if self._owner(name) == request.broker_id and not record.deleting
        ]
        return self._infos(found)

    def _infos(self, topics: Iterable[tuple[str, TopicRecord]]) -> admin.TopicInfoListResponse:
        infos = [
            admin.TopicInfo(name=name, broker_id=self._owner(name), delivery=record.strategy)
            for name, record in sorted(topics, key=lambda topic: topic[0])
        ]
        return admin.TopicInfoListResponse(topics=infos)

    def _owner(self, topic: str) -> str:
        """Return the number of the broker that has a topic; empty while none has it."""
        if self._cluster is None:
            return self._broker_id
        owner = self._cluster.directory.owner_of(topic)
        return str(owner) if owner is not None else ""

    async def create_topic(self, request: admin.NewTopicRequest, call: Call) -> admin.TopicResponse:
        """Create a topic."""
        with suppress(WrongBroker):  # It is there, and another broker serves it.
            await self._topics.create(request.name, _topic_request(request))
        return admin.TopicResponse(success=True)

    async def create_partitioned_topic(
        self, request: admin.PartitionedTopicRequest, call: Call
    ) -> admin.TopicResponse:
        """Create all partitions of a topic."""
        await self._topics.create_partitioned(
            request.base_name, request.partitions, _topic_request(request)
        )
        return admin.TopicResponse(success=True)

    async def delete_topic(self, request: admin.TopicRequest, call: Call) -> admin.TopicResponse:
        """Delete a topic, or all partitions of it."""
        if self._cluster is None:
            await self._registration.delete_topic(request.name)
        else:
            for name in self._topics.names_to_delete(request.name):
                if self._topics.find(name) is not None:
                    await self._registration.delete_physical(name)
                else:
                    await self._cluster.operations.delete_topic(name)
        return admin.TopicResponse(success=True)

    async def unload_topic(self, request: admin.TopicRequest, call: Call) -> admin.TopicResponse:
        """Let another broker serve a topic."""
        if self._cluster is None:
            raise NotSupported("unloading a topic needs a second broker, and this one stands alone")
        names = self._topics.partitions(request.name)
        if not names:
            raise NotFound(f"topic {request.name} does not exist")
        for name in names:
            await self._cluster.operations.unload_topic(name)
        return admin.TopicResponse(success=True)

    async def describe_topic(
        self, request: admin.DescribeTopicRequest, call: Call
    ) -> admin.DescribeTopicResponse:
        """Describe a topic; an unknown one has nothing to tell and is no error."""
        topic = self._topics.find(request.name)
        if topic is None:
            return self._describe_partitions(request.name)
        subject = self._subject(topic)
        latest = subject.latest if subject is not None else None
        return admin.DescribeTopicResponse(
            name=topic.name,
            subscriptions=sorted(topic.subscriptions),
            broker_id=self._broker_id,
            delivery=topic.record.strategy,
            schema_subject=topic.record.schema_subject,
            schema_id=subject.id if subject is not None else None,
            schema_version=latest.version if latest is not None else None,
            schema_type=latest.schema_type if latest is not None else None,
            compatibility_mode=subject.mode.upper() if subject is not None else None,
            durability=topic.record.durability if topic.is_reliable else None,
            standings=standing_messages([topic]),
        )

    def _subject(self, topic: Topic) -> SubjectRecord | None:
        name = topic.record.schema_subject
        return None if name is None else self._schemas.subject(name)

    def _describe_partitions(self, name: str) -> admin.DescribeTopicResponse:
        partitions: list[str] = []
        parts: list[Topic] = []
        with suppress(InvalidRequest):  # What is no name has no partitions either.
            partitions = self._topics.partitions(name)
            parts = self._parts_here(name)
        first = self._topics.catalog.topic(partitions[0]) if partitions else None
        return admin.DescribeTopicResponse(
            name=name,
            broker_id=self._owner(partitions[0]) if first else "",
            delivery=first.strategy if first else "NonReliable",
            durability=first.durability if first else None,
            partitions=len(partitions) or None,
            subscriptions=sorted({each for part in parts for each in part.subscriptions}),
            standings=standing_messages(parts),
        )

    # Subscriptions.

    async def list_subscriptions(
        self, request: admin.TopicRequest, call: Call
    ) -> admin.SubscriptionListResponse:
        """Tell how the subscriptions of a topic, or of its partitions here, get on."""
        parts = self._parts_here(request.name) or [self._topics.get(request.name)]
        return admin.SubscriptionListResponse(
            subscriptions=sorted({name for part in parts for name in part.subscriptions}),
            standings=standing_messages(parts),
        )

    def _parts_here(self, name: str) -> list[Topic]:
        found = (self._topics.find(each) for each in self._topics.partitions(name))
        return [topic for topic in found if topic is not None]

    async def unsubscribe(
        self, request: admin.SubscriptionRequest, call: Call
    ) -> admin.SubscriptionResponse:
        """Delete a subscription nobody uses."""
        await self._registration.unsubscribe(request.topic, request.subscription)
        return admin.SubscriptionResponse(success=True)

    async def set_failure_policy(
        self, request: admin.SetSubscriptionFailurePolicyRequest, call: Call
    ) -> admin.SubscriptionResponse:
        """Set what happens to failed messages, at once and for a subscription to come."""
        if not request.HasField("failure_policy"):
            raise InvalidRequest("the request has no failure_policy")
        policy = failure_policy_of(request.failure_policy)
        policies = self._registration.failure_policies
        await policies.replace(request.topic, request.subscription, policy)
        return admin.SubscriptionResponse(success=True)

    async def get_failure_policy(
        self, request: admin.GetSubscriptionFailurePolicyRequest, call: Call
    ) -> admin.GetSubscriptionFailurePolicyResponse:
        """Return the policy that is in force: what was set, or the defaults."""
        topic = self._registration.reliable_parts(request.topic)[0]
        policies = self._registration.failure_policies
        subscription = topic.subscriptions.get(request.subscription)
        return admin.GetSubscriptionFailurePolicyResponse(
            failure_policy=failure_policy_message(policies.in_force(topic, request.subscription)),
            subscription_type=_KIND_NUMBERS[subscription.kind] if subscription else 0,
            is_default=not policies.is_set(topic, request.subscription),
            subscription_exists=subscription is not None,
        )

    async def set_dispatch_config(
        self, request: admin.SetSubscriptionDispatchConfigRequest, call: Call
    ) -> admin.SubscriptionResponse:
        """Set how many messages may be in flight, at once and for a subscription to come."""
        if not request.HasField("dispatch_config"):
            raise InvalidRequest("the request has no dispatch_config")
        fields = {"max_unacked_messages": request.dispatch_config.max_unacked_messages}
        try:
            config = msgspec.convert(fields, DispatchConfig)
        except msgspec.ValidationError as error:
            raise InvalidRequest(str(error)) from None
        await self._registration.set_dispatch_config(request.topic, request.subscription, config)
        return admin.SubscriptionResponse(success=True)

    async def get_dispatch_config(
        self, request: admin.GetSubscriptionDispatchConfigRequest, call: Call
    ) -> admin.GetSubscriptionDispatchConfigResponse:
        """Return the configuration that is in force: what was set, or the broker's."""
        topic = self._registration.reliable_parts(request.topic)[0]
        window = self._registration.dispatch_settings(topic, request.subscription).window
        message = admin.SubscriptionDispatchConfig(max_unacked_messages=window)
        return admin.GetSubscriptionDispatchConfigResponse(dispatch_config=message)


def _topic_request(
    request: admin.NewTopicRequest | admin.PartitionedTopicRequest,
) -> TopicRequest:
    strategy = _STRATEGIES.get(request.dispatch_strategy)
    if strategy is None:
        raise InvalidRequest(
            f"dispatch_strategy {request.dispatch_strategy} is neither NonReliable (0) nor "
            "Reliable (1)"
        )
    durability = _DURABILITIES.get(request.durability or "fsync")
    if durability is None:
        raise InvalidRequest(f"durability {request.durability!r} is none of fsync, os, memory")
    subject = request.schema_subject or None
    if subject is not None:
        check_client_name("schema subject", subject)
    return TopicRequest(strategy=strategy, durability=durability, schema_subject=subject)
