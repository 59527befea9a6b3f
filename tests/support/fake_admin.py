"""A broker's admin port in memory. For tests of operations and commands."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from typing_extensions import override

from pydanube.wire.calls import CallRefused, Channel, StatusCode
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as pb
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from pydanube.wire.danube.services import METHODS

BROKER_ID = "4711"


class FakeAdmin(Channel):
    """Keeps namespaces, topics and subscriptions; remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.urls: list[str] = []
        self.namespaces = ["default", "system"]
        self.topics: dict[str, pb.DescribeTopicResponse] = {}
        self.policies: dict[tuple[str, str], pb.SubscriptionFailurePolicy] = {}
        self.windows: dict[tuple[str, str], int] = {}
        self.refusal: CallRefused | None = None
        self.leader = BROKER_ID
        self.closed = False
        self.changes_policies = False
        """Whether it can change a policy in part, as brokers of Danube cannot."""

    def open_channel(self, url: str) -> "FakeAdmin":
        self.urls.append(url)
        return self

    def last(self, method: str) -> Any:
        return next(request for name, request in reversed(self.calls) if name == method)

    @override
    async def unary(
        self,
        path: str,
        request: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        assert timeout_seconds is not None, "an admin call must have a deadline"
        method = METHODS[path]
        message = method.request.FromString(request)
        self.calls.append((method.name, message))
        if self.refusal is not None:
            raise self.refusal
        reply = getattr(self, f"_{method.name}")(message)
        assert isinstance(reply, method.response)
        return reply.SerializeToString()

    @override
    def stream(
        self, path: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        raise AssertionError("the admin port has no streams")

    @override
    async def close(self) -> None:
        self.closed = True

    def _ListBrokers(self, _: Any) -> pb.BrokerListResponse:
        broker = pb.BrokerInfo(
            broker_id=BROKER_ID,
            broker_addr="http://127.0.0.1:6650",
            broker_role="Cluster_Leader",
            admin_addr="http://127.0.0.1:50051",
            broker_status="active",
        )
        return pb.BrokerListResponse(brokers=[broker])

    def _GetLeaderBroker(self, _: Any) -> pb.BrokerResponse:
        return pb.BrokerResponse(leader=self.leader)

    def _ListNamespaces(self, _: Any) -> pb.NamespaceListResponse:
        return pb.NamespaceListResponse(namespaces=self.namespaces)

    def _UnloadBroker(self, _: Any) -> pb.UnloadBrokerResponse:
        return pb.UnloadBrokerResponse(started=True, total=3, succeeded=2, failed_topics=["/a/b"])

    def _ActivateBroker(self, _: Any) -> pb.ActivateBrokerResponse:
        return pb.ActivateBrokerResponse(success=True)

    def _GetClusterBalance(self, _: Any) -> pb.ClusterBalanceResponse:
        load = pb.BrokerLoadInfo(broker_id=int(BROKER_ID), load=0.25, topic_count=3)
        return pb.ClusterBalanceResponse(
            mean_load=0.25, broker_count=1, brokers=[load], assignment_strategy="Balanced"
        )

    def _TriggerRebalance(self, _: Any) -> pb.RebalanceResponse:
        move = pb.ProposedMove(topic_name="/default/a", from_broker=1, to_broker=2, reason="load")
        return pb.RebalanceResponse(success=True, proposed_moves=[move])

    def _GetNamespaceTopics(self, request: Any) -> pb.TopicListResponse:
        return pb.TopicListResponse(topics=[name[1:] for name in self._names_in(request.name)])

    def _GetNamespacePolicies(self, _: Any) -> pb.PolicyResponse:
        return pb.PolicyResponse(policies=json.dumps({"max_message_size": 100}))

    def _CreateNamespace(self, request: Any) -> pb.NamespaceResponse:
        if request.name in self.namespaces:
            raise CallRefused(StatusCode.ALREADY_EXISTS, f"namespace {request.name} exists")
        self.namespaces.append(request.name)
        return pb.NamespaceResponse(success=True)

    def _DeleteNamespace(self, request: Any) -> pb.NamespaceResponse:
        if self._names_in(request.name):
            raise CallRefused(StatusCode.FAILED_PRECONDITION, "the namespace holds topics")
        self.namespaces.remove(request.name)
        return pb.NamespaceResponse(success=True)

    def _ListNamespaceTopics(self, request: Any) -> pb.TopicInfoListResponse:
        return self._infos(self._names_in(request.name))

    def _ListBrokerTopics(self, _: Any) -> pb.TopicInfoListResponse:
        return self._infos(list(self.topics))

    def _CreateTopic(self, request: Any) -> pb.TopicResponse:
        self._create(request.name, request, None)
        return pb.TopicResponse(success=True)

    def _CreatePartitionedTopic(self, request: Any) -> pb.TopicResponse:
        self._create(request.base_name, request, request.partitions)
        return pb.TopicResponse(success=True)

    def _DeleteTopic(self, request: Any) -> pb.TopicResponse:
        if self.topics.pop(request.name, None) is None:
            raise CallRefused(StatusCode.NOT_FOUND, f"topic {request.name} not found")
        return pb.TopicResponse(success=True)

    def _UnloadTopic(self, _: Any) -> pb.TopicResponse:
        raise CallRefused(StatusCode.UNIMPLEMENTED, "a broker alone cannot unload")

    def _DescribeTopic(self, request: Any) -> pb.DescribeTopicResponse:
        unknown = pb.DescribeTopicResponse(name=request.name, delivery="NonReliable")
        return self.topics.get(request.name, unknown)

    def _ListSubscriptions(self, request: Any) -> pb.SubscriptionListResponse:
        topic = self.topics[request.name]
        return pb.SubscriptionListResponse(
            subscriptions=topic.subscriptions, standings=topic.standings
        )

    def _Unsubscribe(self, request: Any) -> pb.SubscriptionResponse:
        self.topics[request.topic].subscriptions.remove(request.subscription)
        return pb.SubscriptionResponse(success=True)

    def _Seek(self, request: Any) -> own.SeekResponse:
        partitions = self.topics[request.topic].partitions
        names = [f"{request.topic}-part-{index}" for index in range(partitions)]
        return own.SeekResponse(
            moved=[own.MovedSubscription(topic=name, offset=7) for name in names or [request.topic]]
        )

    def _SetRetention(self, request: Any) -> own.RetentionResponse:
        return own.RetentionResponse(
            time_ms=request.time_ms,
            bytes=request.bytes,
            waits_for_subscriptions=request.waits_for_subscriptions,
            own=["time_ms"],
        )

    def _GetRetention(self, _: Any) -> own.RetentionResponse:
        return own.RetentionResponse(time_ms=5, waits_for_subscriptions=True)

    def _SetReplicas(self, _: Any) -> own.SetReplicasResponse:
        return own.SetReplicasResponse()

    def _SetMessageTtl(self, _: Any) -> own.SetMessageTtlResponse:
        return own.SetMessageTtlResponse()

    def _UpdateFailurePolicy(self, _: Any) -> own.FailurePolicyResponse:
        if not self.changes_policies:
            raise CallRefused(StatusCode.UNIMPLEMENTED, "policies are set as a whole here")
        return own.FailurePolicyResponse(
            ack_timeout_ms=7, backoff_strategy="Fixed", poison_policy="Block"
        )

    def _SetSubscriptionFailurePolicy(self, request: Any) -> pb.SubscriptionResponse:
        self.policies[request.topic, request.subscription] = request.failure_policy
        return pb.SubscriptionResponse(success=True)

    def _GetSubscriptionFailurePolicy(
        self, request: Any
    ) -> pb.GetSubscriptionFailurePolicyResponse:
        policy = self.policies.get((request.topic, request.subscription))
        if policy is None:
            return pb.GetSubscriptionFailurePolicyResponse()
        return pb.GetSubscriptionFailurePolicyResponse(failure_policy=policy, subscription_type=3)

    def _SetSubscriptionDispatchConfig(self, request: Any) -> pb.SubscriptionResponse:
        window = request.dispatch_config.max_unacked_messages
        self.windows[request.topic, request.subscription] = window
        return pb.SubscriptionResponse(success=True)

    def _GetSubscriptionDispatchConfig(
        self, request: Any
    ) -> pb.GetSubscriptionDispatchConfigResponse:
        window = self.windows.get((request.topic, request.subscription))
        if window is None:
            return pb.GetSubscriptionDispatchConfigResponse()
        config = pb.SubscriptionDispatchConfig(max_unacked_messages=window)
        return pb.GetSubscriptionDispatchConfigResponse(dispatch_config=config)

    def _create(self, name: str, request: Any, partitions: int | None) -> None:
        if name in self.topics:
            raise CallRefused(StatusCode.ALREADY_EXISTS, f"topic {name} exists")
        self.topics[name] = pb.DescribeTopicResponse(
            name=name,
            broker_id=BROKER_ID,
            delivery=pb.DispatchStrategy.Name(request.dispatch_strategy),
            durability=request.durability if request.HasField("durability") else None,
            schema_subject=request.schema_subject if request.HasField("schema_subject") else None,
            partitions=partitions,
        )

    def _names_in(self, namespace: str) -> list[str]:
        return [name for name in self.topics if name.startswith(f"/{namespace}/")]

    def _infos(self, names: list[str]) -> pb.TopicInfoListResponse:
        return pb.TopicInfoListResponse(
            topics=[
                pb.TopicInfo(name=name, broker_id=BROKER_ID, delivery=self.topics[name].delivery)
                for name in names
            ]
        )
