"""What a subscription marks its deliveries with, and which acks and nacks speak of them. Pure.

A name says little: it may have belonged to an earlier subscription, of an earlier topic, whose
consumers still hold messages of the same offsets. So each life of a name has a text of its own,
from the catalogue, and what was delivered before a restart, or by another broker, bears it too.
"""


class Marks:
    """The marks of one subscription, as long as a broker serves it."""

    def __init__(self, life: str) -> None:
        self.life = life
        """The same however often the subscription is moved."""
        self._moves = 0
        self.current = life
        """What deliveries carry from now on."""

    def move(self, now_ms: int) -> None:
        """Let what was delivered so far be settled no more: the subscription has been moved."""
        self._moves += 1
        self.current = f"{self.life}.{now_ms:x}.{self._moves}"

    def are(self, mark: str) -> bool:
        """Tell whether a mark is of a delivery that may be settled.

        What a broker delivered before it was restarted bears marks of moves it does not know any
        more; unless the subscription was moved since, they are as good as its own.
        """
        if mark == self.current:
            return True
        return not self._moves and mark.partition(".")[0] == self.life
