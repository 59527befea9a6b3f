"""What a leader knows of one follower, and how much it may send to it."""

from collections import deque
from enum import Enum

from pydanube.metadata.raft.settings import RaftSettings


class Phase(Enum):
    """How entries are sent."""

    PROBE = "one message at a time, until it is known where the logs agree"
    REPLICATE = "message after message, in the trust that all arrive"
    SNAPSHOT = "nothing, until the snapshot has arrived"


class Progress:
    """`match` is how far the follower's synced log equals the leader's; `next` is sent next."""

    def __init__(self, settings: RaftSettings, next_index: int) -> None:
        self._settings = settings
        self.match = 0
        self.next = next_index
        self.phase = Phase.PROBE
        self.active = True
        """Whether it was heard from since the leader last counted."""
        self.snapshot_index = 0
        self._snapshot_age = 0
        self._probe_sent = False
        self._in_flight: deque[tuple[int, int]] = deque()
        self._in_flight_bytes = 0

    @property
    def is_paused(self) -> bool:
        """Whether nothing more may be sent before the follower answers."""
        match self.phase:
            case Phase.PROBE:
                return self._probe_sent
            case Phase.REPLICATE:
                return self._is_full
            case Phase.SNAPSHOT:
                return True

    @property
    def _is_full(self) -> bool:
        return (
            len(self._in_flight) >= self._settings.in_flight_messages_max
            or self._in_flight_bytes >= self._settings.in_flight_bytes_max
        )

    def sent(self, last_index: int, size: int) -> None:
        """Note that entries up to an index are under way."""
        if self.phase is Phase.REPLICATE:
            self.next = last_index + 1
            self._in_flight.append((last_index, size))
            self._in_flight_bytes += size
        else:
            self._probe_sent = True

    def sent_snapshot(self, index: int) -> None:
        """Note that a snapshot is under way."""
        self._begin(Phase.SNAPSHOT)
        self.snapshot_index = index
        self._snapshot_age = 0

    def tick(self) -> None:
        """Take a snapshot for lost that nobody has answered for too long."""
        if self.phase is Phase.SNAPSHOT:
            self._snapshot_age += 1
            if self._snapshot_age >= self._settings.snapshot_ticks:
                self.probe()

    def probe(self) -> None:
        """Find out anew where the logs agree."""
        after = self.snapshot_index if self.phase is Phase.SNAPSHOT else 0
        self._begin(Phase.PROBE)
        self.next = max(self.match, after) + 1

    def accepted(self, match: int) -> bool:
        """Take in how far the logs agree; tell whether that was news."""
        self._free_to(match)
        self._probe_sent = False
        is_news = match > self.match
        self.match = max(self.match, match)
        self.next = max(self.next, match + 1)
        if self.phase is Phase.PROBE or (
            self.phase is Phase.SNAPSHOT and self.match >= self.snapshot_index
        ):
            self._begin(Phase.REPLICATE)
            self.next = self.match + 1
        return is_news

    def refused(self, previous_index: int, agreeing_index: int) -> bool:
        """Step back to where the logs may agree; tell whether there is something to send anew."""
        if self.phase is Phase.SNAPSHOT or previous_index <= self.match:
            return False
        if self.phase is Phase.REPLICATE:
            self.probe()
            return True
        if previous_index != self.next - 1:
            return False  # An answer to what was sent before the last probe.
        self.next = max(min(previous_index, agreeing_index + 1), self.match + 1)
        self._probe_sent = False
        return True

    def heard(self) -> None:
        """The follower lives and answers: let something pass, as messages may have been lost."""
        self.active = True
        self._probe_sent = False
        if self._is_full:
            _, size = self._in_flight.popleft()
            self._in_flight_bytes -= size

    def _begin(self, phase: Phase) -> None:
        self.phase = phase
        self._probe_sent = False
        self._in_flight.clear()
        self._in_flight_bytes = 0

    def _free_to(self, match: int) -> None:
        while self._in_flight and self._in_flight[0][0] <= match:
            _, size = self._in_flight.popleft()
            self._in_flight_bytes -= size
