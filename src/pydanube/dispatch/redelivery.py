"""When a message is delivered that must wait, and when it has failed too often."""

from heapq import heapify, heappop, heappush

from pydanube.dispatch.range_map import Known, RangeMap
from pydanube.model.policies import FailurePolicy

NEVER = 2**62
"""A moment that does not come; later than every other one, also with a timeout added."""
_EXPONENT_MAX = 40
_STALE_MAX = 64


def retry_delay_ms(policy: FailurePolicy, attempts: int, requested_ms: int) -> int:
    """Return how long a message waits after its delivery number `attempts` has failed."""
    delay = policy.base_redelivery_delay_ms
    if policy.backoff_strategy == "Exponential":
        # Disconnects count up without bound; the cap below makes a huge power pointless.
        delay <<= min(attempts - 1, _EXPONENT_MAX)
    return min(max(delay, requested_ms), policy.max_redelivery_delay_ms)


def is_exhausted(policy: FailurePolicy, attempts: int) -> bool:
    """Tell whether a message that failed on its delivery number `attempts` gets no other one."""
    return attempts > policy.max_redelivery_count


class Waiting:
    """Messages that will be delivered later: some at once, some when their time comes.

    Every entry carries the number of deliveries so far.
    """

    def __init__(self) -> None:
        self._later: RangeMap[tuple[int, int]] = RangeMap()
        self._due: list[tuple[int, int]] = []
        self._ready: RangeMap[int] = RangeMap()
        self.count = 0
        """How many messages wait."""

    def schedule(self, start: int, end: int, attempts: int, due_ms: int) -> None:
        """Let messages wait until a time."""
        self.count += end - start
        self._later.insert(start, end, (due_ms, attempts))
        heappush(self._due, (due_ms, start))

    def make_ready(self, start: int, end: int, attempts: int) -> None:
        """Let messages go out as soon as somebody can take them."""
        self.count += end - start
        self._ready.insert(start, end, attempts)

    def first_ready(self) -> Known[int] | None:
        """Return the messages with the lowest offsets that may go out now."""
        return self._ready.first()

    def take_ready(self, start: int, end: int) -> int | None:
        """Remove messages that may go out now, the first of a range; return their attempts.

        None if they do not wait any more.
        """
        taken = self._ready.take(start, end)
        self.count -= sum(to - at for at, to, _ in taken)
        return taken[0][2] if taken else None

    def is_ready(self, offset: int) -> bool:
        """Tell whether a message that entered alone may go out now."""
        return self._ready.at(offset) is not None

    def take(self, start: int, end: int) -> list[Known[int]]:
        """Remove what waits in [start, end) and return it."""
        taken = self._ready.take(start, end)
        if self._later.count:
            rest = self._later.split(end)
            if rest is not None:
                heappush(self._due, (rest[0], end))
            taken += [(at, to, kept[1]) for at, to, kept in self._later.take(start, end)]
            self._forget_stale()
        self.count -= sum(to - at for at, to, _ in taken)
        return taken

    def take_due(self, now_ms: int) -> list[Known[int]]:
        """Remove what has waited long enough and return it in offset order."""
        due: list[Known[int]] = []
        while self._due and self._due[0][0] <= now_ms:
            due_ms, start = heappop(self._due)
            held = self._later.at(start)
            if held is not None and held[1][0] == due_ms:
                due += [(at, to, kept[1]) for at, to, kept in self._later.take(start, held[0])]
        due.sort()
        self.count -= sum(end - start for start, end, _ in due)
        return due

    def hurry(self, by_ms: int) -> None:
        """Let all that waits for a time be due so much earlier."""
        held = [(start, end, value) for start, end, value in self._later]
        self._later = RangeMap()
        for start, end, (due_ms, attempts) in held:
            self._later.insert(start, end, (due_ms - by_ms, attempts))
        self._due = [(value[0] - by_ms, start) for start, _, value in held]
        heapify(self._due)

    def next_due_ms(self) -> int:
        """Return when `take_due` will find something, or NEVER."""
        while self._due:
            due_ms, start = self._due[0]
            held = self._later.at(start)
            if held is not None and held[1][0] == due_ms:
                return due_ms
            heappop(self._due)
        return NEVER

    def _forget_stale(self) -> None:
        if len(self._due) > 2 * len(self._later) + _STALE_MAX:
            self._due = [(kept[0], start) for start, _, kept in self._later]
            heapify(self._due)
