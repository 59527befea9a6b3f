"""Verbs on subscriptions."""

import msgspec
from msgspec import Struct

from pydanube.client.admin import AdminConnection
from pydanube.client.admin_answers import MovedSubscription
from pydanube.client.positions import read_position
from pydanube.errors import InvalidRequest, NotSupported
from pydanube.model.failure_policies import FailurePolicyChange, changed_policy
from pydanube.model.names import check_client_name, check_topic_name
from pydanube.model.policies import (
    DispatchConfig,
    FailurePolicy,
    SubscriptionType,
)
from pydanube.model.standing import SubscriptionStanding


class SubscriptionChange(Struct, frozen=True):
    """What was done to a subscription."""

    topic: str
    subscription: str
    change: str


class SubscriptionFailurePolicy(Struct, frozen=True, kw_only=True):
    """How a subscription treats failures."""

    topic: str
    subscription: str
    subscription_type: SubscriptionType | None
    """None while there is no such subscription."""
    failure_policy: FailurePolicy
    """What is in force."""
    is_default: bool
    """Nobody has set it."""


class SubscriptionDispatchConfig(Struct, frozen=True, kw_only=True):
    """How much a subscription keeps in flight; None if the broker tells only what was set."""

    topic: str
    subscription: str
    dispatch_config: DispatchConfig | None


class SubscriptionOperations:
    """What an operator does with subscriptions; topic names are full, such as /default/orders."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def names(self, topic: str) -> list[str]:
        """Return the names of a topic's subscriptions."""
        names, _ = await self._connection.subscriptions(check_topic_name(topic))
        return names

    async def list_subscriptions(self, topic: str) -> list[SubscriptionStanding] | list[str]:
        """Return how a topic's subscriptions get on; their names if the broker tells no more."""
        names, standings = await self._connection.subscriptions(check_topic_name(topic))
        return standings if standings else names

    async def unsubscribe(self, topic: str, subscription: str) -> SubscriptionChange:
        """Delete a subscription that has no active consumer."""
        await self._connection.unsubscribe(*_checked(topic, subscription))
        return SubscriptionChange(topic, subscription, "deleted")

    async def seek(self, topic: str, subscription: str, position: str) -> list[MovedSubscription]:
        """Move a subscription to earliest, latest, offset:<n> or time:<ms, or ISO 8601>."""
        return await self._connection.seek(*_checked(topic, subscription), read_position(position))

    async def set_failure_policy(
        self, topic: str, subscription: str, change: FailurePolicyChange
    ) -> SubscriptionFailurePolicy:
        """Change what is given of what happens to messages that fail; the rest stays as it is."""
        if change == FailurePolicyChange():
            raise InvalidRequest(
                "give at least one setting to change, such as --poison-policy dead_letter; "
                "get-failure-policy shows the present ones"
            )
        names = _checked(topic, subscription)
        try:
            await self._connection.policies.change(*names, change)
        except NotSupported:
            # A broker of Danube, or an earlier one of ours: it replaces all of a policy.
            present = await self._connection.failure_policy(*names)
            policy = changed_policy(present.policy, change, topic)
            await self._connection.set_failure_policy(*names, policy)
        return await self.failure_policy(topic, subscription)

    async def failure_policy(self, topic: str, subscription: str) -> SubscriptionFailurePolicy:
        """Return what is in force, whether it was set or not."""
        found = await self._connection.failure_policy(*_checked(topic, subscription))
        return SubscriptionFailurePolicy(
            topic=topic,
            subscription=subscription,
            subscription_type=found.type,
            failure_policy=found.policy,
            is_default=found.is_default,
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
