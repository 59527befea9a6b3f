"""The admin API as typed calls: our own types in and out, and errors by their kind."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from google.protobuf.message import Message as ProtoMessage

from pydanube.client.admin_answers import (
    Balance,
    Broker,
    BrokerLoad,
    ClusterStatus,
    DrainReport,
    ListedTopic,
    Move,
    MovedSubscription,
    NewTopic,
    NodeChange,
    PolicyInForce,
    Rebalancing,
    RetentionInForce,
    TopicDescription,
)
from pydanube.client.connection import closed
from pydanube.client.schema_calls import SchemaCalls
from pydanube.client.subscription_calls import PolicyCalls, policy_of, standing_of
from pydanube.errors import DanubeError, Unavailable
from pydanube.model.policies import (
    DispatchConfig,
    FailurePolicy,
    OwnRetention,
    SubscriptionType,
)
from pydanube.model.standing import SubscriptionStanding
from pydanube.wire.calls import CallRefused, Channel, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as pb
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from pydanube.wire.danube.status import error_of

Request = TypeVar("Request", bound=ProtoMessage)
Response = TypeVar("Response", bound=ProtoMessage)

CALL_SECONDS_MAX = 10.0
NODE_SECONDS_MAX = 30.0
MOVES_SECONDS_MAX = 300.0

_SUBSCRIPTION_TYPES: tuple[SubscriptionType, ...] = ("Exclusive", "Shared", "Failover", "KeyShared")


class AdminConnection:
    """Calls to one broker's admin port. Errors are DanubeErrors; every call has a deadline."""

    def __init__(self, channel: Channel, url: str) -> None:
        self._channel = channel
        self._url = url
        self._is_closed = False

    async def close(self) -> None:
        """Release the connection."""
        self._is_closed = True
        await self._channel.close()

    @property
    def policies(self) -> PolicyCalls:
        """The calls that change failure policies in part."""
        return PolicyCalls(self._call)

    @property
    def schemas(self) -> SchemaCalls:
        """The calls of the schema registry."""
        return SchemaCalls(self._call)

    # Brokers

    async def brokers(self) -> list[Broker]:
        """Return the brokers of the cluster."""
        reply = await self._call(services.LIST_BROKERS, pb.Empty())
        return [
            Broker(
                broker_id=each.broker_id,
                broker_addr=each.broker_addr,
                broker_role=each.broker_role,
                admin_addr=each.admin_addr,
                metrics_addr=each.metrics_addr,
                broker_status=each.broker_status,
            )
            for each in reply.brokers
        ]

    async def cluster_status(self) -> ClusterStatus:
        """Return what the broker knows of the metadata's nodes."""
        reply = await self._call(services.CLUSTER_STATUS, pb.Empty())
        return ClusterStatus(
            leader_id=reply.leader_id,
            current_term=reply.current_term,
            last_applied=reply.last_applied,
            voters=list(reply.voters),
            learners=list(reply.learners),
            self_node_id=reply.self_node_id,
            raft_addr=reply.raft_addr,
        )

    async def create_backup(self) -> tuple[bytes, bytes]:
        """Return a backup's manifest, as JSON, and the state of the metadata."""
        reply = await self._call(
            services.CREATE_BACKUP, own.CreateBackupRequest(), seconds_max=NODE_SECONDS_MAX
        )
        # Here, so that other commands do not load it.
        import pyarrow as pa

        manifest = msgspec.json.decode(reply.manifest)
        state = pa.decompress(reply.state, manifest["state_bytes"], codec="zstd", asbytes=True)
        return reply.manifest, state

    async def add_node(self, node_id: int, address: str) -> NodeChange:
        """Let a node learn."""
        request = pb.AddNodeRequest(addr=address, node_id=node_id)
        reply = await self._call(services.ADD_NODE, request, seconds_max=NODE_SECONDS_MAX)
        return NodeChange(success=reply.success, message=reply.message)

    async def promote_node(self, node_id: int) -> NodeChange:
        """Let a learner vote."""
        request = pb.PromoteNodeRequest(node_id=node_id)
        reply = await self._call(services.PROMOTE_NODE, request, seconds_max=NODE_SECONDS_MAX)
        return NodeChange(success=reply.success, message=reply.message)

    async def remove_node(self, node_id: int) -> NodeChange:
        """Take a node out of the cluster."""
        request = pb.RemoveNodeRequest(node_id=node_id)
        reply = await self._call(services.REMOVE_NODE, request, seconds_max=NODE_SECONDS_MAX)
        return NodeChange(success=reply.success, message=reply.message)

    async def leader(self) -> str:
        """Return the leader's id, or `not_found`."""
        return (await self._call(services.GET_LEADER_BROKER, pb.Empty())).leader

    async def namespaces(self) -> list[str]:
        """Return the names of all namespaces."""
        return list((await self._call(services.LIST_NAMESPACES, pb.Empty())).namespaces)

    async def unload_broker(
        self,
        broker_id: str,
        *,
        max_parallel: int,
        namespaces_include: Sequence[str],
        namespaces_exclude: Sequence[str],
        dry_run: bool,
        timeout_seconds: int,
    ) -> DrainReport:
        """Move every topic away from a broker."""
        request = pb.UnloadBrokerRequest(
            broker_id=broker_id,
            max_parallel=max_parallel,
            namespaces_include=namespaces_include,
            namespaces_exclude=namespaces_exclude,
            dry_run=dry_run,
            timeout_seconds=timeout_seconds,
        )
        seconds_max = CALL_SECONDS_MAX + timeout_seconds
        reply = await self._call(services.UNLOAD_BROKER, request, seconds_max=seconds_max)
        return DrainReport(
            started=reply.started,
            total=reply.total,
            succeeded=reply.succeeded,
            failed=reply.failed,
            pending=reply.pending,
            failed_topics=list(reply.failed_topics),
        )

    async def activate_broker(self, broker_id: str, reason: str) -> None:
        """Let a drained broker take topics again."""
        request = pb.ActivateBrokerRequest(broker_id=broker_id, reason=reason)
        self._require((await self._call(services.ACTIVATE_BROKER, request)).success)

    async def balance(self) -> Balance:
        """Return how evenly the brokers share the work."""
        reply = await self._call(services.GET_CLUSTER_BALANCE, pb.ClusterBalanceRequest())
        return Balance(
            coefficient_of_variation=reply.coefficient_of_variation,
            mean_load=reply.mean_load,
            max_load=reply.max_load,
            min_load=reply.min_load,
            std_deviation=reply.std_deviation,
            broker_count=reply.broker_count,
            assignment_strategy=reply.assignment_strategy,
            brokers=[
                BrokerLoad(
                    broker_id=str(each.broker_id),
                    load=each.load,
                    topic_count=each.topic_count,
                    is_overloaded=each.is_overloaded,
                    is_underloaded=each.is_underloaded,
                )
                for each in reply.brokers
            ],
        )

    async def rebalance(self, *, dry_run: bool, max_moves: int | None) -> Rebalancing:
        """Move topics until the work is shared evenly, or tell what would be moved."""
        request = pb.RebalanceRequest(dry_run=dry_run, max_moves=max_moves)
        reply = await self._call(services.TRIGGER_REBALANCE, request, seconds_max=MOVES_SECONDS_MAX)
        return Rebalancing(
            success=reply.success,
            moves_executed=reply.moves_executed,
            error_message=reply.error_message,
            proposed_moves=[
                Move(
                    topic=each.topic_name,
                    from_broker=str(each.from_broker),
                    to_broker=str(each.to_broker),
                    estimated_load=each.estimated_load,
                    reason=each.reason,
                )
                for each in reply.proposed_moves
            ],
            note=reply.note,
        )

    # Namespaces

    async def namespace_topics(self, namespace: str) -> list[str]:
        """Return the names of a namespace's topics, with a leading slash."""
        request = pb.NamespaceRequest(name=namespace)
        topics = (await self._call(services.GET_NAMESPACE_TOPICS, request)).topics
        # This one call leaves the slash out, for the sake of older tools.
        return [topic if topic.startswith("/") else f"/{topic}" for topic in topics]

    async def namespace_policies(self, namespace: str) -> dict[str, int | bool]:
        """Return a namespace's policies; 0 is unlimited, as everywhere on the wire."""
        request = pb.NamespaceRequest(name=namespace)
        text = (await self._call(services.GET_NAMESPACE_POLICIES, request)).policies
        try:
            return msgspec.json.decode(text, type=dict[str, int | bool])
        except msgspec.DecodeError as error:
            raise DanubeError(f"{self._url} sent policies that are no JSON object") from error

    async def create_namespace(self, namespace: str) -> None:
        """Create a namespace."""
        request = pb.NamespaceRequest(name=namespace)
        self._require((await self._call(services.CREATE_NAMESPACE, request)).success)

    async def delete_namespace(self, namespace: str) -> None:
        """Delete an empty namespace."""
        request = pb.NamespaceRequest(name=namespace)
        self._require((await self._call(services.DELETE_NAMESPACE, request)).success)

    # Topics

    async def topics_of_namespace(self, namespace: str) -> list[ListedTopic]:
        """Return a namespace's topics."""
        request = pb.NamespaceRequest(name=namespace)
        return _listed((await self._call(services.LIST_NAMESPACE_TOPICS, request)).topics)

    async def topics_of_broker(self, broker_id: str) -> list[ListedTopic]:
        """Return the topics that a broker serves."""
        request = pb.BrokerRequest(broker_id=broker_id)
        return _listed((await self._call(services.LIST_BROKER_TOPICS, request)).topics)

    async def create_topic(self, topic: NewTopic) -> None:
        """Create a topic, or all its partitions."""
        strategy = pb.DispatchStrategy.Value(topic.dispatch)
        if topic.partitions is None:
            single = pb.NewTopicRequest(
                name=topic.name,
                schema_subject=topic.schema_subject,
                dispatch_strategy=strategy,
                durability=topic.durability,
            )
            self._require((await self._call(services.CREATE_TOPIC, single)).success)
            return
        request = pb.PartitionedTopicRequest(
            base_name=topic.name,
            partitions=topic.partitions,
            schema_subject=topic.schema_subject,
            dispatch_strategy=strategy,
            durability=topic.durability,
        )
        self._require((await self._call(services.CREATE_PARTITIONED_TOPIC, request)).success)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its partitions, messages and subscriptions."""
        request = pb.TopicRequest(name=topic)
        self._require((await self._call(services.DELETE_TOPIC, request)).success)

    async def set_message_ttl(
        self, ttl_ms: int | None, *, topic: str | None = None, namespace: str | None = None
    ) -> None:
        """Say how long messages of a topic, or of a namespace, may be delivered.

        0 is for ever; with None a topic has what its namespace has.
        """
        request = own.SetMessageTtlRequest(ttl_ms=ttl_ms)
        if topic is not None:
            request.topic = topic
        elif namespace is not None:
            request.namespace = namespace
        await self._call(services.SET_MESSAGE_TTL, request)

    async def set_replicas(
        self, replicas: int | None, *, topic: str | None = None, namespace: str | None = None
    ) -> None:
        """Say in how many journals the messages of a topic, or of a namespace's topics, are.

        0 is as the brokers are configured; with None a topic has what its namespace has.
        """
        request = own.SetReplicasRequest(replicas=replicas)
        if topic is not None:
            request.topic = topic
        elif namespace is not None:
            request.namespace = namespace
        await self._call(services.SET_REPLICAS, request)

    async def set_retention(
        self,
        rule: OwnRetention,
        *,
        topic: str | None = None,
        namespace: str | None = None,
    ) -> RetentionInForce:
        """Say how long the history of a topic, or of a namespace's topics, stays.

        Of a topic, None is as its namespace says; of a namespace it is unlimited, or true.
        """
        request = own.SetRetentionRequest(
            time_ms=rule.time_ms,
            bytes=rule.bytes,
            waits_for_subscriptions=rule.waits_for_subscriptions,
        )
        if topic is not None:
            request.topic = topic
        elif namespace is not None:
            request.namespace = namespace
        return _retention(await self._call(services.SET_RETENTION, request))

    async def retention(
        self, *, topic: str | None = None, namespace: str | None = None
    ) -> RetentionInForce:
        """Tell how long the history of a topic, or of a namespace's topics, stays."""
        request = own.GetRetentionRequest()
        if topic is not None:
            request.topic = topic
        elif namespace is not None:
            request.namespace = namespace
        return _retention(await self._call(services.GET_RETENTION, request))

    async def unload_topic(self, topic: str) -> None:
        """Hand a topic over to another broker."""
        request = pb.TopicRequest(name=topic)
        reply = await self._call(services.UNLOAD_TOPIC, request, seconds_max=NODE_SECONDS_MAX)
        self._require(reply.success)

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Return what is known about a topic; an unknown one has no broker."""
        reply = await self._call(services.DESCRIBE_TOPIC, pb.DescribeTopicRequest(name=topic))
        return TopicDescription(
            name=reply.name,
            broker_id=reply.broker_id,
            delivery=reply.delivery,
            durability=reply.durability if reply.HasField("durability") else None,
            partitions=reply.partitions if reply.HasField("partitions") else None,
            subscriptions=list(reply.subscriptions),
            standings=[standing_of(each) for each in reply.standings],
            schema_subject=reply.schema_subject if reply.HasField("schema_subject") else None,
            schema_id=reply.schema_id if reply.HasField("schema_id") else None,
            schema_version=reply.schema_version if reply.HasField("schema_version") else None,
            schema_type=reply.schema_type if reply.HasField("schema_type") else None,
            compatibility_mode=(
                reply.compatibility_mode if reply.HasField("compatibility_mode") else None
            ),
        )

    # Subscriptions

    async def subscriptions(self, topic: str) -> tuple[list[str], list[SubscriptionStanding]]:
        """Return the names of a topic's subscriptions, and how they get on if the broker tells."""
        request = pb.TopicRequest(name=topic)
        reply = await self._call(services.LIST_SUBSCRIPTIONS, request)
        return list(reply.subscriptions), [standing_of(each) for each in reply.standings]

    async def unsubscribe(self, topic: str, subscription: str) -> None:
        """Delete a subscription that has no active consumer."""
        request = pb.SubscriptionRequest(topic=topic, subscription=subscription)
        self._require((await self._call(services.UNSUBSCRIBE, request)).success)

    async def seek(self, topic: str, subscription: str, position: str) -> list[MovedSubscription]:
        """Move a subscription of a topic, or of all its partitions; tell where it is now."""
        request = own.SeekRequest(topic=topic, subscription=subscription, position=position)
        reply = await self._call(services.SEEK, request)
        return [
            MovedSubscription(topic=each.topic, subscription=subscription, offset=each.offset)
            for each in reply.moved
        ]

    async def set_failure_policy(
        self, topic: str, subscription: str, policy: FailurePolicy
    ) -> None:
        """Say what happens to messages that are nacked or not acked in time."""
        request = pb.SetSubscriptionFailurePolicyRequest(
            topic=topic,
            subscription=subscription,
            failure_policy=pb.SubscriptionFailurePolicy(
                max_redelivery_count=policy.max_redelivery_count,
                ack_timeout_ms=policy.ack_timeout_ms,
                base_redelivery_delay_ms=policy.base_redelivery_delay_ms,
                max_redelivery_delay_ms=policy.max_redelivery_delay_ms,
                backoff_strategy=pb.SubscriptionBackoffStrategy.Value(policy.backoff_strategy),
                dead_letter_topic=policy.dead_letter_topic,
                poison_policy=pb.SubscriptionPoisonPolicy.Value(policy.poison_policy),
            ),
        )
        reply = await self._call(services.SET_SUBSCRIPTION_FAILURE_POLICY, request)
        self._require(reply.success)

    async def failure_policy(self, topic: str, subscription: str) -> PolicyInForce:
        """Return the policy that holds; brokers that tell only what was set mean the defaults."""
        request = pb.GetSubscriptionFailurePolicyRequest(topic=topic, subscription=subscription)
        reply = await self._call(services.GET_SUBSCRIPTION_FAILURE_POLICY, request)
        is_told = reply.HasField("failure_policy")
        number = reply.subscription_type
        # Brokers say 0, which is Exclusive, also where they do not know.
        known = reply.subscription_exists or number > 0
        return PolicyInForce(
            policy=policy_of(reply.failure_policy) if is_told else FailurePolicy(),
            is_default=reply.is_default or not is_told,
            type=(
                _SUBSCRIPTION_TYPES[number] if known and number < len(_SUBSCRIPTION_TYPES) else None
            ),
        )

    async def set_dispatch_config(
        self, topic: str, subscription: str, config: DispatchConfig
    ) -> None:
        """Say how many messages a subscription may have in flight."""
        request = pb.SetSubscriptionDispatchConfigRequest(
            topic=topic,
            subscription=subscription,
            dispatch_config=pb.SubscriptionDispatchConfig(
                max_unacked_messages=config.max_unacked_messages
            ),
        )
        reply = await self._call(services.SET_SUBSCRIPTION_DISPATCH_CONFIG, request)
        self._require(reply.success)

    async def dispatch_config(self, topic: str, subscription: str) -> DispatchConfig | None:
        """Return the dispatch configuration that was set, if any."""
        request = pb.GetSubscriptionDispatchConfigRequest(topic=topic, subscription=subscription)
        reply = await self._call(services.GET_SUBSCRIPTION_DISPATCH_CONFIG, request)
        if not reply.HasField("dispatch_config"):
            return None
        return DispatchConfig(max_unacked_messages=reply.dispatch_config.max_unacked_messages)

    async def _call(
        self,
        method: services.Method[Request, Response],
        request: Request,
        *,
        seconds_max: float = CALL_SECONDS_MAX,
    ) -> Response:
        try:
            return await services.invoke(
                self._channel, method, request, timeout_seconds=seconds_max
            )
        except CallRefused as refusal:
            if refusal.code is StatusCode.UNAVAILABLE:
                text = f"the admin port at {self._url} cannot be used now: {refusal.text}"
                raise Unavailable(text) from refusal
            if self._is_closed and refusal.code is StatusCode.CANCELLED:
                raise closed(self._url) from refusal
            raise error_of(refusal) from refusal

    def _require(self, success: bool) -> None:
        if not success:
            raise DanubeError(f"{self._url} failed without a reason")


def _listed(topics: Sequence[pb.TopicInfo]) -> list[ListedTopic]:
    return [
        ListedTopic(name=each.name, broker_id=each.broker_id, delivery=each.delivery)
        for each in topics
    ]


def _retention(reply: own.RetentionResponse) -> RetentionInForce:
    return RetentionInForce(
        time_ms=reply.time_ms,
        bytes=reply.bytes,
        waits_for_subscriptions=reply.waits_for_subscriptions,
        own=list(reply.own),
    )
