"""People at the admin port: they create topics and change settings while messages flow."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from pydanube.model.policies import FailurePolicy
from pydanube.wire.calls import CallRefused, Channel, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.services import invoke
from tests.support.plans import SubscriptionPlan
from tests.support.wire_calls import CALL_SECONDS
from tests.support.workloads import Ground


class Reconfigurer:
    """Changes windows and poison policies of living subscriptions, in ways that do no harm."""

    def __init__(
        self, ground: Ground, subscriptions: Sequence[tuple[str, SubscriptionPlan]]
    ) -> None:
        self._ground = ground
        self._subscriptions = subscriptions
        self._channel = ground.open_channel()

    async def run(self) -> None:
        randomness = self._ground.randomness
        try:
            while True:
                await self._ground.pause(0.2, 4.0)
                topic, plan = self._subscriptions[randomness.below(len(self._subscriptions))]
                with suppress(CallRefused):
                    policy = plan.reconfigured(randomness)
                    if policy is not None and randomness.below(2):
                        await set_failure_policy(self._channel, topic, plan.name, policy)
                    else:
                        window = 1 + randomness.below(20)
                        await set_window(self._channel, topic, plan.name, window)
        finally:
            await self._channel.close()


async def until_done(call: Callable[[], Awaitable[None]]) -> None:
    """Repeat an operation until it is done; that it had been done before is as good."""
    while True:
        try:
            return await call()
        except CallRefused as refused:
            if refused.code is StatusCode.ALREADY_EXISTS:
                return
            if refused.code is StatusCode.INVALID_ARGUMENT:
                raise
            await asyncio.sleep(0.2)


async def set_failure_policy(
    channel: Channel, topic: str, subscription: str, policy: FailurePolicy
) -> None:
    request = admin.SetSubscriptionFailurePolicyRequest(
        topic=topic,
        subscription=subscription,
        failure_policy=admin.SubscriptionFailurePolicy(
            max_redelivery_count=policy.max_redelivery_count,
            ack_timeout_ms=policy.ack_timeout_ms,
            base_redelivery_delay_ms=policy.base_redelivery_delay_ms,
            max_redelivery_delay_ms=policy.max_redelivery_delay_ms,
            backoff_strategy=admin.SubscriptionBackoffStrategy.Value(policy.backoff_strategy),
            dead_letter_topic=policy.dead_letter_topic,
            poison_policy=admin.SubscriptionPoisonPolicy.Value(policy.poison_policy),
        ),
    )
    method = services.SET_SUBSCRIPTION_FAILURE_POLICY
    await invoke(channel, method, request, timeout_seconds=CALL_SECONDS)


async def set_window(channel: Channel, topic: str, subscription: str, window: int) -> None:
    request = admin.SetSubscriptionDispatchConfigRequest(
        topic=topic,
        subscription=subscription,
        dispatch_config=admin.SubscriptionDispatchConfig(max_unacked_messages=window),
    )
    method = services.SET_SUBSCRIPTION_DISPATCH_CONFIG
    await invoke(channel, method, request, timeout_seconds=CALL_SECONDS)


async def create_partitioned_topic(channel: Channel, base: str, partitions: int) -> None:
    request = admin.PartitionedTopicRequest(
        base_name=base,
        partitions=partitions,
        dispatch_strategy=admin.DispatchStrategy.Reliable,
    )
    method = services.CREATE_PARTITIONED_TOPIC
    await invoke(channel, method, request, timeout_seconds=CALL_SECONDS)
