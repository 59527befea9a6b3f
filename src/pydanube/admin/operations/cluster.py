"""Verbs on the nodes that agree on a cluster's metadata."""

from collections.abc import Callable

from pydanube.client.admin import AdminConnection
from pydanube.client.admin_answers import ClusterStatus, NodeChange
from pydanube.errors import InvalidRequest

OpenConnection = Callable[[str], AdminConnection]
"""Connects to the admin port at a URL."""


class ClusterOperations:
    """What an operator does with nodes."""

    def __init__(self, connection: AdminConnection, open_connection: OpenConnection) -> None:
        self._connection = connection
        self._open_connection = open_connection

    async def status(self) -> ClusterStatus:
        """Return who leads, who votes and who learns."""
        return await self._connection.cluster_status()

    async def create_backup(self) -> tuple[bytes, bytes]:
        """Return a backup's manifest and state; see `danube backup`."""
        return await self._connection.create_backup()

    async def add_node(self, admin_url: str) -> NodeChange:
        """Let the broker at an admin URL learn; it has been started with --join."""
        if not admin_url:
            raise InvalidRequest("name the admin URL of the broker to add")
        joining = self._open_connection(admin_url)
        try:
            new = await joining.cluster_status()
        finally:
            await joining.close()
        return await self._connection.add_node(new.self_node_id, new.raft_addr)

    async def promote_node(self, node_id: int) -> NodeChange:
        """Let a learner vote."""
        return await self._connection.promote_node(node_id)

    async def remove_node(self, node_id: int) -> NodeChange:
        """Take a node out of the cluster."""
        return await self._connection.remove_node(node_id)
