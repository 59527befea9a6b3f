"""Numbers what a producer sends, so that a message sent twice is stored once."""

import asyncio

from pydanube.model.sequences import MessageSequence

SESSION_IDS = 2**63


class Session:
    """One producer's count on one topic. Many messages may be under way at once.

    Each names the one before it, so that the broker stores them in order and none twice; what was
    given up is left out of that chain. Whatever has to be sent again goes before what comes after
    it. Until the first one is acknowledged it is alone: it makes the session known, and what
    continues an unknown one would be refused.
    """

    def __init__(self, session_id: int) -> None:
        self.id = session_id
        self._next = 0
        self._is_known = False
        self._under_way: dict[int, None] = {}
        """In the order of sending, which is that of the numbers."""
        self._waiting: set[int] = set()
        """Those of them that are not sent now: new ones, and those that failed."""
        self._turns: dict[int, asyncio.Future[None]] = {}
        self._given_up: set[int] = set()

    def begin(self) -> int:
        """Take the next number."""
        sequence = self._next
        self._next += 1
        self._under_way[sequence] = None
        self._waiting.add(sequence)
        return sequence

    async def wait_for_turn(self, sequence: int) -> MessageSequence:
        """Return what to send with a message, as soon as all before it are sent; then send it."""
        while not self._may_go(sequence):
            turn = self._turns[sequence] = asyncio.get_running_loop().create_future()
            try:
                await turn
            finally:
                del self._turns[sequence]
        self._waiting.remove(sequence)
        self._wake_next()
        previous = sequence - 1
        while previous in self._given_up:
            previous -= 1
        return MessageSequence(sequence, previous if previous >= 0 else None, self.id)

    def failed(self, sequence: int) -> None:
        """Take note that a message has to be sent again."""
        self._waiting.add(sequence)

    def stored(self, sequence: int) -> None:
        """Take note that a message is acknowledged."""
        self._is_known = True
        self._end(sequence)

    def give_up(self, sequence: int) -> None:
        """Take note that a message will not be sent again, stored or not."""
        self._given_up.add(sequence)
        self._end(sequence)

    def _may_go(self, sequence: int) -> bool:
        is_first = sequence == min(self._waiting)
        return is_first and (self._is_known or len(self._waiting) == len(self._under_way))

    def _wake_next(self) -> None:
        if self._waiting:
            turn = self._turns.get(min(self._waiting))
            if turn is not None and not turn.done():
                turn.set_result(None)

    def _end(self, sequence: int) -> None:
        del self._under_way[sequence]
        self._waiting.discard(sequence)
        self._forget_given_up()
        self._wake_next()

    def _forget_given_up(self) -> None:
        """Keep only what the chain of a message under way, or of the next one, leads over."""
        if not self._given_up:
            return
        oldest = next(iter(self._under_way), self._next)
        kept = {number for number in self._given_up if number >= oldest}
        link = oldest - 1
        while link in self._given_up:
            kept.add(link)
            link -= 1
        self._given_up = kept
