"""Why a node refuses a proposal."""

from pydanube.errors import Unavailable


class NotLeader(Unavailable):
    """Another node leads, or nobody does right now; nothing was done."""

    code = "not_leader"

    def __init__(self, leader: int, reason: str = "the cluster has no leader right now") -> None:
        super().__init__(f"node {leader} is the leader" if leader else reason)
        self.leader = leader
