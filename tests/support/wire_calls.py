"""Single calls, as any client may make them."""

from collections.abc import Sequence

from pydanube.model.policies import DispatchStrategy, SubscriptionType
from pydanube.wire.calls import Channel
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.services import invoke
from tests.support.recorded_channel import payload_of

CALL_SECONDS = 4.0


async def create_producer(
    channel: Channel, topic: str, name: str, strategy: DispatchStrategy
) -> int:
    request = api.ProducerRequest(
        request_id=1,
        producer_name=name,
        topic_name=topic,
        dispatch_strategy=api.DispatchStrategy.Value(strategy),
    )
    reply = await invoke(channel, services.CREATE_PRODUCER, request, timeout_seconds=CALL_SECONDS)
    return reply.producer_id


async def send(
    channel: Channel,
    topic: str,
    producer_id: int,
    producer: str,
    value: str,
    key: str | None = None,
    length: int = 0,
) -> int:
    """Publish and return the offset."""
    request = api.StreamMessage(
        request_id=1,
        msg_id=api.MsgID(producer_id=producer_id, topic_name=topic),
        payload=payload_of(value, length),
        publish_time=1,
        producer_name=producer,
        routing_key=key,
    )
    reply = await invoke(channel, services.SEND_MESSAGE, request, timeout_seconds=CALL_SECONDS)
    return reply.topic_offset


async def subscribe(
    channel: Channel,
    topic: str,
    subscription: str,
    name: str,
    kind: SubscriptionType,
    *,
    filters: Sequence[str] = (),
    start: str = "earliest",
) -> int:
    request = api.ConsumerRequest(
        request_id=1,
        topic_name=topic,
        consumer_name=name,
        subscription=subscription,
        subscription_type=api.ConsumerRequest.SubscriptionType.Value(kind),
        key_filters=filters,
        start_position=start,
    )
    reply = await invoke(channel, services.SUBSCRIBE, request, timeout_seconds=CALL_SECONDS)
    return reply.consumer_id


async def unsubscribe(channel: Channel, topic: str, subscription: str) -> None:
    request = admin.SubscriptionRequest(topic=topic, subscription=subscription)
    await invoke(channel, services.UNSUBSCRIBE, request, timeout_seconds=CALL_SECONDS)


async def ack(channel: Channel, message: api.StreamMessage, subscription: str) -> None:
    request = api.AckRequest(
        request_id=message.request_id, msg_id=message.msg_id, subscription_name=subscription
    )
    await invoke(channel, services.ACK, request, timeout_seconds=CALL_SECONDS)


async def nack(channel: Channel, message: api.StreamMessage, subscription: str) -> None:
    request = api.NackRequest(
        request_id=message.request_id,
        msg_id=message.msg_id,
        subscription_name=subscription,
        reason="told to",
    )
    await invoke(channel, services.NACK, request, timeout_seconds=CALL_SECONDS)


async def create_topic(channel: Channel, topic: str, strategy: DispatchStrategy) -> None:
    request = admin.NewTopicRequest(
        name=topic, dispatch_strategy=api.DispatchStrategy.Value(strategy)
    )
    await invoke(channel, services.CREATE_TOPIC, request, timeout_seconds=CALL_SECONDS)


async def delete_topic(channel: Channel, topic: str) -> None:
    request = admin.TopicRequest(name=topic)
    await invoke(channel, services.DELETE_TOPIC, request, timeout_seconds=CALL_SECONDS)
