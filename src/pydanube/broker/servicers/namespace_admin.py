"""NamespaceAdmin: namespaces and what they hold."""

import msgspec

from pydanube.model.policies import OWN_POLICIES, Policies
from pydanube.topics.manager import TopicManager
from pydanube.wire.calls import Call, HandlerTable
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.services import serve


class NamespaceAdminServicer:
    """Translates, delegates, translates back."""

    def __init__(self, topics: TopicManager) -> None:
        self._topics = topics

    def register(self, table: HandlerTable) -> None:
        """Serve the methods of NamespaceAdmin."""
        serve(table, services.GET_NAMESPACE_TOPICS, self.topics)
        serve(table, services.GET_NAMESPACE_POLICIES, self.policies)
        serve(table, services.CREATE_NAMESPACE, self.create)
        serve(table, services.DELETE_NAMESPACE, self.delete)

    async def topics(self, request: admin.NamespaceRequest, call: Call) -> admin.TopicListResponse:
        """Name a namespace's topics, without the leading slash as clients expect here."""
        self._topics.namespace_policies(request.name)
        names = [topic.name.removeprefix("/") for topic in self._topics.in_namespace(request.name)]
        return admin.TopicListResponse(topics=names)

    async def policies(self, request: admin.NamespaceRequest, call: Call) -> admin.PolicyResponse:
        """Return a namespace's policies as JSON."""
        policies = self._topics.namespace_policies(request.name)
        return admin.PolicyResponse(policies=_policies_as_json(policies))

    async def create(self, request: admin.NamespaceRequest, call: Call) -> admin.NamespaceResponse:
        """Create a namespace with the broker's policies."""
        await self._topics.create_namespace(request.name)
        return admin.NamespaceResponse(success=True)

    async def delete(self, request: admin.NamespaceRequest, call: Call) -> admin.NamespaceResponse:
        """Delete an empty namespace."""
        await self._topics.delete_namespace(request.name)
        return admin.NamespaceResponse(success=True)


def _policies_as_json(policies: Policies) -> str:
    # On the wire unlimited is written 0. Of our own policies stock tools hear only once one is set.
    values = {
        name: value or 0
        for name, value in msgspec.structs.asdict(policies).items()
        if value is not None or name not in OWN_POLICIES
    }
    return msgspec.json.encode(values).decode()
