"""Verbs on subscriptions."""

import msgspec
from msgspec import Struct

from pydanube.client.admin import AdminConnection
from pydanube.client.admin_answers import MovedSubscription
from pydanube.client.positions import read_position
from pydanube.errors import InvalidRequest
from pydanube.model.names import check_client_name, check_topic_name
from pydanube.model.policies import (
    DispatchConfig,
    FailurePolicy,
    SubscriptionType,
)


class SubscriptionChange(Struct, frozen=True):
    """What was done to a subscription."""

    topic: str
    subscription: str
    change: str


class SubscriptionFailurePolicy(Struct, frozen=True, kw_only=True):
    """How a subscription treats failures; None where nothing was set and the defaults hold."""

    topic: str
    subscription: str
    subscription_type: SubscriptionType | None
    failure_policy: FailurePolicy | None


class SubscriptionDispatchConfig(Struct, frozen=True, kw_only=True):
    """How much a subscription keeps in flight; None where nothing was set."""

    topic: str
    subscription: str
    dispatch_config: DispatchConfig | None


class SubscriptionOperations:
    """What an operator does with subscriptions; topic names are full, such as /default/orders."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def list_subscriptions(self, topic: str) -> list[str]:
        """Return the names of a topic's subscriptions."""
        return await self._connection.subscriptions(check_topic_name(topic))

    async def unsubscribe(self, topic: str, subscription: str) -> SubscriptionChange:
        """Delete a subscription that has no active consumer."""
        await self._connection.unsubscribe(*_checked(topic, subscription))
        return SubscriptionChange(topic, subscription, "deleted")

    async def seek(self, topic: str, subscription: str, position: str) -> list[MovedSubscription]:
        """Move a subscription to earliest, latest, offset:<n> or time:<ms, or ISO 8601>."""
        return await self._connection.seek(*_checked(topic, subscription), read_position(position))

    async def set_failure_policy(
        self, topic: str, subscription: str, policy: FailurePolicy
    ) -> SubscriptionFailurePolicy:
        """Say what happens to messages that are nacked or not acked in time."""
        _check(policy, FailurePolicy)
        if policy.poison_policy == "DeadLetter" and policy.dead_letter_topic is None:
            raise InvalidRequest("poison policy dead_letter needs --dead-letter-topic")
        if policy.dead_letter_topic is not None:
            check_topic_name(policy.dead_letter_topic)
        await self._connection.set_failure_policy(*_checked(topic, subscription), policy)
        return await self.failure_policy(topic, subscription)

    async def failure_policy(self, topic: str, subscription: str) -> SubscriptionFailurePolicy:
        """Return what was set."""
        policy, kind = await self._connection.failure_policy(*_checked(topic, subscription))
        return SubscriptionFailurePolicy(
            topic=topic, subscription=subscription, subscription_type=kind, failure_policy=policy
        )

    async def set_dispatch_config(
        self, topic: str, subscription: str, config: DispatchConfig
    ) -> SubscriptionDispatchConfig:
        """Say how many messages a subscription may have in flight."""
        _check(config, DispatchConfig)
        await self._connection.set_dispatch_config(*_checked(topic, subscription), config)
        return await self.dispatch_config(topic, subscription)

    async def dispatch_config(self, topic: str, subscription: str) -> SubscriptionDispatchConfig:
        """Return what was set."""
        config = await self._connection.dispatch_config(*_checked(topic, subscription))
        return SubscriptionDispatchConfig(
            topic=topic, subscription=subscription, dispatch_config=config
        )


def _checked(topic: str, subscription: str) -> tuple[str, str]:
    return check_topic_name(topic), check_client_name("subscription", subscription)


def _check(settings: Struct, kind: type[Struct]) -> None:
    """Refuse settings out of their limits: the constructor of a Struct does not look."""
    try:
        msgspec.convert(msgspec.to_builtins(settings), kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from error
