"""What an operator can do: typed verbs with typed results, one module per noun.

The command line is one face of these; others show the same verbs and never each other.
"""

from collections.abc import Callable
from typing import Self

from pydanube.admin.operations.brokers import BrokerOperations
from pydanube.admin.operations.cluster import ClusterOperations
from pydanube.admin.operations.namespaces import NamespaceOperations
from pydanube.admin.operations.schemas import SchemaOperations
from pydanube.admin.operations.subscriptions import SubscriptionOperations
from pydanube.admin.operations.topics import TopicOperations
from pydanube.client.admin import AdminConnection
from pydanube.errors import InvalidRequest
from pydanube.wire.calls import Channel

DEFAULT_ENDPOINT = "http://127.0.0.1:50051"


class Operations:
    """Every noun, over one broker's admin port. Calls raise DanubeErrors."""

    def __init__(
        self,
        channel: Channel,
        endpoint: str,
        open_channel: Callable[[str], Channel] | None = None,
    ) -> None:
        self._connection = AdminConnection(channel, endpoint)
        self._open_channel = open_channel
        self.cluster = ClusterOperations(self._connection, self._connect)
        self.brokers = BrokerOperations(self._connection)
        self.namespaces = NamespaceOperations(self._connection)
        self.schemas = SchemaOperations(self._connection.schemas)
        self.subscriptions = SubscriptionOperations(self._connection)
        self.topics = TopicOperations(self._connection)

    def _connect(self, url: str) -> AdminConnection:
        if self._open_channel is None:
            raise InvalidRequest(
                "this program is connected to one broker only; use `danube` to reach others"
            )
        return AdminConnection(self._open_channel(url), url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the connection."""
        await self._connection.close()
