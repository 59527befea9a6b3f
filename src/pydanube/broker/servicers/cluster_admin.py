"""ClusterAdmin: which brokers agree on the metadata, and how they come and go."""

from pydanube.errors import InvalidRequest
from pydanube.metadata import keys
from pydanube.metadata.raft_store import RaftStore
from pydanube.metadata.store import Delete
from pydanube.model.ids import BrokerId
from pydanube.wire.calls import Call, HandlerTable
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.services import serve


class ClusterAdminServicer:
    """Translates, delegates, translates back. Any node answers; the leader carries out."""

    def __init__(self, raft: RaftStore) -> None:
        self._raft = raft

    def register(self, table: HandlerTable) -> None:
        """Serve the methods of ClusterAdmin."""
        serve(table, services.CLUSTER_STATUS, self.status)
        serve(table, services.ADD_NODE, self.add_node)
        serve(table, services.PROMOTE_NODE, self.promote_node)
        serve(table, services.REMOVE_NODE, self.remove_node)

    def register_early(self, table: HandlerTable) -> None:
        """Serve what is asked of a node that is in no cluster yet, by whoever adds it to one."""
        serve(table, services.CLUSTER_STATUS, self.status)

    async def status(self, request: admin.Empty, call: Call) -> admin.ClusterStatusResponse:
        """Tell what this node knows of the others."""
        status = self._raft.status()
        return admin.ClusterStatusResponse(
            leader_id=status.leader,
            current_term=status.term,
            last_applied=status.applied,
            voters=sorted(status.membership.voters),
            learners=sorted(status.membership.learners),
            self_node_id=status.node,
            raft_addr=self._raft.node_info().address,
        )

    async def add_node(self, request: admin.AddNodeRequest, call: Call) -> admin.AddNodeResponse:
        """Let a node learn, until it has caught up."""
        if not request.addr or not request.node_id:
            raise InvalidRequest("a node is added by its number and its Raft address, host:port")
        await self._raft.add_member(request.node_id, request.addr)
        return admin.AddNodeResponse(
            success=True,
            node_id=request.node_id,
            message=f"node {request.node_id} learns; to let it vote: danube cluster promote-node "
            f"--node-id {request.node_id}",
        )

    async def promote_node(
        self, request: admin.PromoteNodeRequest, call: Call
    ) -> admin.PromoteNodeResponse:
        """Let a learner vote."""
        if request.node_id in self._raft.status().membership.voters:
            return admin.PromoteNodeResponse(
                success=True, message=f"node {request.node_id} votes already"
            )
        await self._raft.promote(request.node_id)
        return admin.PromoteNodeResponse(success=True, message=f"node {request.node_id} votes now")

    async def remove_node(
        self, request: admin.RemoveNodeRequest, call: Call
    ) -> admin.RemoveNodeResponse:
        """Take a node out of the cluster."""
        await self._raft.remove_member(request.node_id)
        if request.node_id != self._raft.node:  # Who is no member any more writes nothing.
            # Whether it takes topics is of no interest any more, nor what it could not write.
            await self._raft.transact([], [Delete(keys.broker_state(BrokerId(request.node_id)))])
        return admin.RemoveNodeResponse(
            success=True, message=f"node {request.node_id} is no member any more"
        )
