"""How several nodes that know only each other's addresses become one cluster."""

from collections.abc import Callable
from typing import Protocol

from pydanube.metadata.raft.membership import Membership
from pydanube.metadata.raft_calls import NODE_INFO, NodeInfo, decode
from pydanube.metadata.transport import Transport
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.wire.calls import CallRefused, StatusCode

POLL_SECONDS = 0.5
CALL_SECONDS = 3.0

_log = get_logger(__name__)


class Place(Protocol):
    """Where a node is, and where the founders are."""

    @property
    def address(self) -> str:
        """How the others reach this node."""

    @property
    def seed_nodes(self) -> tuple[str, ...]:
        """Where all founders are."""


def plan_founding(own: NodeInfo, others: list[NodeInfo]) -> Membership | None:
    """Return the members to found a cluster with; None if that is not this node's part.

    All founders have answered. The lowest number founds; a node that finds a cluster founds none.
    """
    if any(other.belongs_to_a_cluster for other in [own, *others]):
        return None
    if any(other.node < own.node for other in others):
        return None
    voters = {info.node: info.address for info in sorted([own, *others], key=lambda one: one.node)}
    return Membership(voters, {})


async def founding_membership(
    clock: Clock, own: Callable[[], NodeInfo], transport: Transport, place: Place
) -> Membership | None:
    """Ask all founders until each has answered, or one of them belongs to a cluster."""
    unheard = [address for address in place.seed_nodes if address != place.address]
    heard: dict[str, NodeInfo] = {}
    while not own().belongs_to_a_cluster:
        for address in unheard:
            try:
                reply = await transport.call(address, NODE_INFO, b"", timeout_seconds=CALL_SECONDS)
            except CallRefused as refused:
                if refused.code is StatusCode.FAILED_PRECONDITION:
                    _log.warning("a founder refuses this node", address=address, error=refused.text)
                continue
            heard[address] = decode(reply, NodeInfo)
            if heard[address].belongs_to_a_cluster:
                return None
        if len(heard) == len(unheard):
            return plan_founding(own(), list(heard.values()))
        missing = [address for address in unheard if address not in heard]
        _log.info("waiting for the other founders of the cluster", missing=missing)
        await clock.sleep(POLL_SECONDS)
    return None
