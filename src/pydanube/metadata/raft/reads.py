"""Reads that wait until their leader is sure to be the leader still."""

from collections import deque
from collections.abc import Iterable

from msgspec import Struct


class ReadReady(Struct, frozen=True):
    """A read may be answered from a state that has applied up to `index`.

    None: the node is no longer sure to be leader; ask again, perhaps elsewhere.
    """

    context: int
    index: int | None


class _Read(Struct, frozen=True):
    context: int
    index: int
    round: int


class Reads:
    """Reads in the order in which they were asked, each with the round that confirms it."""

    def __init__(self) -> None:
        self._waiting: deque[_Read] = deque()
        self._early: list[int] = []
        self._heard: dict[int, int] = {}
        self.round = 0
        """The latest round of heartbeats; a read waits for one that began after it came."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._early)

    @property
    def wants_round(self) -> bool:
        """Whether a read waits for a round that has not begun."""
        return bool(self._waiting) and self._waiting[-1].round > self.round

    def hold(self, context: int) -> None:
        """Keep a read that came before the leader knew what is committed."""
        self._early.append(context)

    def add(self, context: int, committed: int) -> None:
        """Let a read wait for the next round; it will see what is committed now."""
        self._waiting.append(_Read(context, committed, self.round + 1))

    def release_held(self, committed: int) -> None:
        """The leader knows what is committed: let the early reads wait like the others."""
        for context in self._early:
            self.add(context, committed)
        self._early = []

    def heard(self, node: int, round_: int) -> None:
        """Note that a node took the sender for the leader during that round."""
        self._heard[node] = max(self._heard.get(node, 0), round_)

    def heard_by(self, round_: int) -> list[int]:
        """Return the nodes that have answered that round, or a later one."""
        return [node for node, heard in self._heard.items() if heard >= round_]

    def next_round(self) -> int | None:
        """Return the round that the first read waits for."""
        return self._waiting[0].round if self._waiting else None

    def take(self, round_: int) -> list[ReadReady]:
        """Return the reads which that round confirms."""
        ready = []
        while self._waiting and self._waiting[0].round <= round_:
            read = self._waiting.popleft()
            ready.append(ReadReady(read.context, read.index))
        return ready

    def give_up(self) -> Iterable[ReadReady]:
        """Return all reads unanswered."""
        contexts = [read.context for read in self._waiting] + self._early
        self._waiting.clear()
        self._early = []
        return [ReadReady(context, None) for context in contexts]
