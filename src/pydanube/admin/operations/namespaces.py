"""Verbs on namespaces."""

from msgspec import Struct

from pydanube.client.admin import AdminConnection
from pydanube.client.admin_answers import RetentionInForce
from pydanube.model.names import check_namespace_name
from pydanube.model.policies import OwnRetention


class NamespaceChange(Struct, frozen=True):
    """What was done to a namespace."""

    namespace: str
    change: str


class NamespacePolicies(Struct, frozen=True):
    """The limits of a namespace's topics; 0 is unlimited, as everywhere on the wire."""

    namespace: str
    policies: dict[str, int | bool]


class NamespaceOperations:
    """What an operator does with namespaces."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def list_namespaces(self) -> list[str]:
        """Return the names of all namespaces."""
        return await self._connection.namespaces()

    async def topics(self, namespace: str) -> list[str]:
        """Return the full names of a namespace's topics."""
        return await self._connection.namespace_topics(check_namespace_name(namespace))

    async def policies(self, namespace: str) -> NamespacePolicies:
        """Return the limits of a namespace's topics."""
        policies = await self._connection.namespace_policies(check_namespace_name(namespace))
        return NamespacePolicies(namespace, policies)

    async def create(self, namespace: str) -> NamespaceChange:
        """Create a namespace."""
        await self._connection.create_namespace(check_namespace_name(namespace))
        return NamespaceChange(namespace, "created")

    async def set_message_ttl(self, namespace: str, ttl_ms: int) -> NamespacePolicies:
        """Say how long messages of a namespace's topics may be delivered; 0 is for ever."""
        name = check_namespace_name(namespace)
        await self._connection.set_message_ttl(ttl_ms, namespace=name)
        return await self.policies(name)

    async def set_replicas(self, namespace: str, replicas: int) -> NamespacePolicies:
        """Say in how many journals messages of a namespace's topics are; 0 is as configured."""
        name = check_namespace_name(namespace)
        await self._connection.set_replicas(replicas, namespace=name)
        return await self.policies(name)

    async def retention(self, namespace: str) -> RetentionInForce:
        """Tell how long the history of a namespace's topics stays."""
        return await self._connection.retention(namespace=check_namespace_name(namespace))

    async def set_retention(self, namespace: str, rule: OwnRetention) -> RetentionInForce:
        """Say how long the history of a namespace's topics stays; 0 and None are for ever."""
        name = check_namespace_name(namespace)
        return await self._connection.set_retention(rule, namespace=name)

    async def delete(self, namespace: str) -> NamespaceChange:
        """Delete an empty namespace."""
        await self._connection.delete_namespace(check_namespace_name(namespace))
        return NamespaceChange(namespace, "deleted")
