"""SubscriptionControl and TopicControl: what PyDanube offers beyond Danube's services."""

import msgspec
from msgspec import structs

from pydanube.errors import InvalidRequest
from pydanube.model.failure_policies import FailurePolicyChange
from pydanube.model.names import check_client_name
from pydanube.model.policies import OwnRetention, Policies, Retention, retention_in_force
from pydanube.model.timing import MILLISECONDS_MAX
from pydanube.topics.leaving import say_goodbye
from pydanube.topics.manager import TopicManager
from pydanube.topics.registration import Registration
from pydanube.topics.seeking import seek_everywhere
from pydanube.wire.calls import Call, HandlerTable
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from pydanube.wire.danube.services import serve


class ControlServicer:
    """Translates, delegates, translates back."""

    def __init__(self, topics: TopicManager, registration: Registration) -> None:
        self._topics = topics
        self._registration = registration

    def register(self, table: HandlerTable) -> None:
        """Serve the methods of both services."""
        serve(table, services.SEEK, self.seek)
        serve(table, services.CLOSE_PRODUCER, self.close_producer)
        serve(table, services.CLOSE_CONSUMER, self.close_consumer)
        serve(table, services.LEAVE_SUBSCRIPTION, self.unsubscribe)
        serve(table, services.UPDATE_FAILURE_POLICY, self.update_failure_policy)
        serve(table, services.SET_MESSAGE_TTL, self.set_message_ttl)
        serve(table, services.SET_RETENTION, self.set_retention)
        serve(table, services.GET_RETENTION, self.get_retention)
        serve(table, services.SET_REPLICAS, self.set_replicas)

    async def seek(self, request: own.SeekRequest, call: Call) -> own.SeekResponse:
        """Move a subscription of a topic, or of all its partitions."""
        check_client_name("subscription", request.subscription)
        if not request.position:
            raise InvalidRequest("the request has no position to move the subscription to")
        moved = await seek_everywhere(
            self._topics, self._registration, request.topic, request.subscription, request.position
        )
        return own.SeekResponse(
            moved=[own.MovedSubscription(topic=topic, offset=offset) for topic, offset in moved]
        )

    async def close_producer(
        self, request: own.CloseProducerRequest, call: Call
    ) -> own.CloseProducerResponse:
        """Let a producer go."""
        await self._registration.close_producer(request.producer_id)
        return own.CloseProducerResponse()

    async def close_consumer(
        self, request: own.CloseConsumerRequest, call: Call
    ) -> own.CloseConsumerResponse:
        """Let a consumer go at once, with its name unless it keeps that."""
        if request.keeps_name:
            say_goodbye(self._registration, request.consumer_id, call.peer)
        else:
            await self._registration.close_consumer(request.consumer_id, call.peer)
        return own.CloseConsumerResponse()

    async def unsubscribe(
        self, request: own.UnsubscribeRequest, call: Call
    ) -> own.UnsubscribeResponse:
        """Delete a subscription that nobody but the caller uses."""
        leaving = request.consumer_id if request.HasField("consumer_id") else None
        await self._registration.unsubscribe(request.topic, request.subscription, leaving)
        return own.UnsubscribeResponse()

    async def update_failure_policy(
        self, request: own.UpdateFailurePolicyRequest, call: Call
    ) -> own.FailurePolicyResponse:
        """Change what is given of a failure policy, on a topic or on all its partitions."""
        change = _policy_change(request)
        policies = self._registration.failure_policies
        policy = None
        for topic in self._registration.reliable_parts(request.topic):
            policy = await policies.change(
                topic.name, request.subscription, change, unless_set=request.unless_set
            )
        assert policy is not None, "there is at least one part"
        return own.FailurePolicyResponse(**structs.asdict(policy))

    async def set_message_ttl(
        self, request: own.SetMessageTtlRequest, call: Call
    ) -> own.SetMessageTtlResponse:
        """Say how long messages may be delivered."""
        ttl_ms = request.ttl_ms if request.HasField("ttl_ms") else None
        if ttl_ms is not None and ttl_ms > MILLISECONDS_MAX:
            raise InvalidRequest(f"ttl_ms {ttl_ms} is beyond {MILLISECONDS_MAX}")
        match request.WhichOneof("of"):
            case "topic":
                await self._registration.set_message_ttl(request.topic, ttl_ms)
            case "namespace":
                await self._topics.set_namespace_ttl(request.namespace, ttl_ms or None)
            case _:
                raise InvalidRequest("the request names neither a topic nor a namespace")
        return own.SetMessageTtlResponse()

    async def set_replicas(
        self, request: own.SetReplicasRequest, call: Call
    ) -> own.SetReplicasResponse:
        """Say in how many journals messages are."""
        replicas = request.replicas if request.HasField("replicas") else None
        match request.WhichOneof("of"):
            case "topic":
                await self._registration.set_replicas(request.topic, replicas)
            case "namespace":
                await self._topics.set_namespace_replicas(request.namespace, replicas or None)
            case _:
                raise InvalidRequest("the request names neither a topic nor a namespace")
        return own.SetReplicasResponse()

    async def set_retention(
        self, request: own.SetRetentionRequest, call: Call
    ) -> own.RetentionResponse:
        """Say how long history stays."""
        rule = _own_retention(request)
        match request.WhichOneof("of"):
            case "topic":
                await self._registration.set_retention(
                    request.topic, None if rule == OwnRetention() else rule
                )
            case "namespace":
                await self._topics.set_namespace_retention(
                    request.namespace, retention_in_force(Policies(), rule)
                )
            case _:
                raise InvalidRequest("the request names neither a topic nor a namespace")
        return self._retention(request)

    async def get_retention(
        self, request: own.GetRetentionRequest, call: Call
    ) -> own.RetentionResponse:
        """Tell how long history stays."""
        return self._retention(request)

    def _retention(
        self, request: own.SetRetentionRequest | own.GetRetentionRequest
    ) -> own.RetentionResponse:
        match request.WhichOneof("of"):
            case "topic":
                topic = self._registration.reliable_parts(request.topic)[0]
                rule = topic.record.retention or OwnRetention()
                names = [name for name, value in structs.asdict(rule).items() if value is not None]
                return _retention_response(topic.retention, names)
            case "namespace":
                policies = self._topics.namespace_policies(request.namespace)
                return _retention_response(retention_in_force(policies), [])
            case _:
                raise InvalidRequest("the request names neither a topic nor a namespace")


def _policy_change(request: own.UpdateFailurePolicyRequest) -> FailurePolicyChange:
    names = set(FailurePolicyChange.__struct_fields__)
    given = {field.name: value for field, value in request.ListFields() if field.name in names}
    try:
        return msgspec.convert(given, FailurePolicyChange)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


def _own_retention(request: own.SetRetentionRequest) -> OwnRetention:
    for name in ("time_ms", "bytes"):
        if getattr(request, name) > MILLISECONDS_MAX:
            raise InvalidRequest(f"{name} {getattr(request, name)} is beyond {MILLISECONDS_MAX}")
    return OwnRetention(
        time_ms=request.time_ms if request.HasField("time_ms") else None,
        bytes=request.bytes if request.HasField("bytes") else None,
        waits_for_subscriptions=request.waits_for_subscriptions
        if request.HasField("waits_for_subscriptions")
        else None,
    )


def _retention_response(retention: Retention, names: list[str]) -> own.RetentionResponse:
    return own.RetentionResponse(
        time_ms=retention.time_ms or 0,
        bytes=retention.bytes or 0,
        waits_for_subscriptions=retention.waits_for_subscriptions,
        own=names,
    )
