"""Who belongs to the cluster, and how that may change: by one voter at a time."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from pydanube.errors import Conflict, InvalidRequest, NotFound

MEMBERS_MAX = 64


class Membership(Struct, frozen=True, array_like=True):
    """The members by id, each with its address. Voters decide; learners only receive the log."""

    voters: dict[int, str]
    learners: dict[int, str]

    @property
    def quorum(self) -> int:
        """How many voters are a majority."""
        return len(self.voters) // 2 + 1

    def is_quorum(self, nodes: Iterable[int]) -> bool:
        """Tell whether a majority of the voters is among these nodes."""
        return sum(node in self.voters for node in set(nodes)) >= self.quorum

    def address_of(self, node: int) -> str | None:
        """Return where a member is reached."""
        return self.voters.get(node, self.learners.get(node))

    def others(self, node: int) -> list[int]:
        """Return all members but this one, in the order of their ids."""
        return sorted((self.voters.keys() | self.learners.keys()) - {node})

    def with_member(self, node: int, address: str) -> "Membership":
        """Return the members with one more, which learns; a member only moves to the address."""
        if node <= 0 or not address:
            raise InvalidRequest(f"a member has an id above 0 and an address, not {node} {address}")
        if node in self.voters:
            return Membership(_with(self.voters, node, address), self.learners)
        if len(self.voters) + len(self.learners) >= MEMBERS_MAX and node not in self.learners:
            raise Conflict(f"the cluster has {MEMBERS_MAX} members already; remove one first")
        return Membership(self.voters, _with(self.learners, node, address))

    def with_voter(self, node: int) -> "Membership":
        """Return the members after a learner has become a voter; a voter stays one."""
        if node in self.voters:
            return self
        if node not in self.learners:
            raise NotFound(f"node {node} is no member: add it first, then promote it")
        return Membership(
            _with(self.voters, node, self.learners[node]), _without(self.learners, node)
        )

    def without(self, node: int) -> "Membership":
        """Return the members without one."""
        if self.address_of(node) is None:
            raise NotFound(f"node {node} is no member")
        if node in self.voters and len(self.voters) == 1:
            raise Conflict(f"node {node} is the last voter and cannot be removed")
        return Membership(_without(self.voters, node), _without(self.learners, node))


def voters_apart(one: Membership, other: Membership) -> int:
    """Return how many nodes are voters in one of the two and not in the other."""
    return len(one.voters.keys() ^ other.voters.keys())


def _with(members: Mapping[int, str], node: int, address: str) -> dict[int, str]:
    return dict(sorted({**members, node: address}.items()))


def _without(members: Mapping[int, str], node: int) -> dict[int, str]:
    return {member: address for member, address in members.items() if member != node}
