"""Sets what becomes of messages that fail, for subscriptions that are there or to come."""

from collections.abc import Callable

from pydanube.model.failure_policies import (
    FailurePolicyChange,
    changed_policy,
    check_failure_policy,
)
from pydanube.model.names import check_client_name
from pydanube.model.policies import FailurePolicy
from pydanube.topics.catalog import Catalog
from pydanube.topics.topic import Topic
from pydanube.topics.topic_schemas import HoldTopic


class FailurePolicies:
    """Changes policies. A change is durable before it applies, and then applies at once."""

    def __init__(
        self,
        catalog: Catalog,
        hold: HoldTopic,
        reliable: Callable[[str], Topic],
        apply: Callable[[Topic, str], None],
    ) -> None:
        self._catalog = catalog
        self._hold = hold
        self._reliable = reliable
        self._apply = apply

    def in_force(self, topic: Topic, subscription: str) -> FailurePolicy:
        """Return what holds for a subscription, set or not, there or to come."""
        return self._catalog.failure_policy(topic.name, subscription) or FailurePolicy()

    def is_set(self, topic: Topic, subscription: str) -> bool:
        """Tell whether somebody has set it."""
        return self._catalog.failure_policy(topic.name, subscription) is not None

    async def replace(self, topic_name: str, subscription: str, policy: FailurePolicy) -> None:
        """Store a policy in place of what was before."""
        self._reliable(topic_name)
        check_client_name("subscription", subscription)
        check_failure_policy(policy, topic_name)
        async with self._hold(topic_name):
            await self._store(self._reliable(topic_name), subscription, policy)

    async def change(
        self,
        topic_name: str,
        subscription: str,
        change: FailurePolicyChange,
        *,
        unless_set: bool = False,
    ) -> FailurePolicy:
        """Change what is given and leave the rest; return what holds then.

        With `unless_set` a policy that somebody has set stays as it is.
        """
        self._reliable(topic_name)
        check_client_name("subscription", subscription)
        async with self._hold(topic_name):
            topic = self._reliable(topic_name)
            present = self.in_force(topic, subscription)
            if unless_set and self.is_set(topic, subscription):
                return present
            policy = changed_policy(present, change, topic_name)
            if policy != present or not self.is_set(topic, subscription):
                await self._store(topic, subscription, policy)
            return policy

    async def _store(self, topic: Topic, subscription: str, policy: FailurePolicy) -> None:
        await self._catalog.put_failure_policy(topic.name, subscription, policy)
        self._apply(topic, subscription)
