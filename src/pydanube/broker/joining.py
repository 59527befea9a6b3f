"""What a broker can answer before it is in its cluster: who it is, and what it waits for."""

from pydanube.broker.servicers.cluster_admin import ClusterAdminServicer
from pydanube.metadata.raft_store import RaftStore
from pydanube.wire.calls import HandlerTable


class Joining:
    """A node that is open and not in order yet. Whoever adds it must learn its number from it."""

    def __init__(self, raft: RaftStore, admin_url: str) -> None:
        self._raft = raft
        self._admin_url = admin_url
        self.table = HandlerTable()
        """What is answered early."""
        ClusterAdminServicer(raft).register_early(self.table)

    def waits_for(self) -> str | None:
        """Return what an operator must do before this broker serves; None if nothing."""
        if not self._raft.waits_to_be_added:
            return None
        return (
            "this broker waits to be added to a cluster; at a broker of that cluster: "
            f"danube cluster add-node --node-addr {self._admin_url}"
        )
