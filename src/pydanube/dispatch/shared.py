"""All consumers share the messages."""

from collections import deque

from typing_extensions import override

from pydanube.dispatch.events import DispatchSettings
from pydanube.dispatch.members import Member
from pydanube.dispatch.ordered import OrderedDispatcher
from pydanube.model.ids import Offset
from pydanube.model.progress import Progress


class SharedDispatcher(OrderedDispatcher):
    """Delivers to connected consumers in turn, new messages and retries alike.

    Each consumer with room gets as many messages as if they were dealt out one by one. What can
    be dealt out at the same moment goes in one contiguous range per consumer, so that batches stay
    batches. A consumer without room is passed over, and delays nobody.
    """

    def __init__(self, progress: Progress, settings: DispatchSettings, seen_end: Offset) -> None:
        super().__init__(progress, settings, seen_end)
        self._turns: deque[Member] = deque()
        """Everybody with room, whose turn it is first."""

    @override
    def _credit_changed(self, member: Member) -> None:
        if member.credit and not member.in_turn:
            self._turns.append(member)
            member.in_turn = True
        elif member.in_turn and not member.credit:
            self._turns.remove(member)
            member.in_turn = False

    @override
    def _spread(self, start: int, end: int, attempt: int) -> int:
        turns = self._turns
        while start < end and turns:
            takers = len(turns)
            share = (end - start) // takers
            if share > 1:
                # Whole rounds: the same number for everybody, as long as all have room.
                share = min(share, min(member.credit for member in turns))
            elif not share:
                share = takers = 1
            for _ in range(takers):
                member = turns.popleft()
                stop = start + share
                self._deliver(member, start, stop, attempt)
                start = stop
                if member.credit:
                    turns.append(member)
                else:
                    member.in_turn = False
        return start
