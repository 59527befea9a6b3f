"""The ring that decides between consumers which a key could go to just as well."""

from bisect import bisect_left
from collections.abc import Container

from pydanube.model.hashing import ring_hash
from pydanube.model.ids import ConsumerId

NODES_PER_CONSUMER = 100


class HashRing:
    """Consumers at many places each, so that keys spread evenly and few move when one leaves."""

    def __init__(self) -> None:
        self._nodes: list[tuple[int, ConsumerId]] = []

    def add(self, consumer: ConsumerId) -> None:
        """Put a consumer on the ring."""
        self._nodes += [
            (ring_hash(f"{consumer}-{number}"), consumer) for number in range(NODES_PER_CONSUMER)
        ]
        self._nodes.sort()

    def remove(self, consumer: ConsumerId) -> None:
        """Take a consumer off the ring."""
        self._nodes = [node for node in self._nodes if node[1] != consumer]

    def owner(self, key: str, among: Container[ConsumerId]) -> ConsumerId | None:
        """Return the consumer at or after the key's place, counting only those given."""
        start = bisect_left(self._nodes, (ring_hash(key), 0))
        for index in range(start - len(self._nodes), start):
            consumer = self._nodes[index][1]
            if consumer in among:
                return consumer
        return None
