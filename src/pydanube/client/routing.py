"""Which partition a message goes to. Pure, and the same in every Danube client."""

from pydanube.model.hashing import fnv1a_64


class PartitionRouter:
    """Sends equal routing keys to one partition, and messages without a key to each in turn.

    The choice for a key depends on the key and the number of partitions alone, so that producers
    in other processes and other languages agree. Messages with a key leave the turn untouched.
    """

    def __init__(self, partitions: int) -> None:
        assert partitions >= 1, "a topic has at least one partition"
        self._partitions = partitions
        self._turn = 0

    def pick(self, routing_key: str | None) -> int:
        """Return the index of the partition for the next message; the first turn is partition 0."""
        if self._partitions == 1:
            return 0
        if routing_key is not None:
            return fnv1a_64(routing_key) % self._partitions
        index = self._turn
        self._turn = (index + 1) % self._partitions
        return index
