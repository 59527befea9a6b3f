"""What keeps a subscription from going on, and what has been said about it. Pure."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from pydanube.dispatch.events import BlockedMessage
from pydanube.model.policies import FailurePolicy

STALLED_MS_MIN = 60_000
"""Nothing settled for so long, though there are consumers and messages: that is worth a word."""
REASON_SHOWN_MAX = 200

Hindrance = Literal["dead letters", "keys"]


class Trouble(Struct, frozen=True, kw_only=True):
    """Why a subscription does not go on."""

    state: Literal["blocked", "stalled"]
    reason: str | None
    next_step: str
    offset: int | None = None
    attempts: int | None = None


class Line(Struct, frozen=True, kw_only=True):
    """What the log shall say, once."""

    event: str
    fields: Mapping[str, object]
    is_bad: bool


class Progress(Struct, frozen=True, kw_only=True):
    """How far a subscription is, when it is looked at now and then."""

    settlements: int
    """A number that grows whenever something is settled."""
    pending: int
    """Messages that could be settled; those that wait for their own time are left out."""
    active_consumers: int
    policy: FailurePolicy


class Troubles:
    """Judges one subscription by what its pump tells, and says each trouble once.

    Blocked comes first: it stands until somebody decides. Then what hinders the broker itself,
    and then that nothing is settled though consumers are there.
    """

    def __init__(self, topic: str, subscription: str, *, by_key: bool) -> None:
        self._topic = topic
        self._subscription = subscription
        self._by_key = by_key
        self.blocked_count = 0
        """As it was told last."""
        self._first: BlockedMessage | None = None
        self._counted_in_log = 0
        self._hindrances: dict[Hindrance, Trouble] = {}
        self._settlements = 0
        self._quiet_since_ms: int | None = None
        self._quiet: Trouble | None = None

    @property
    def present(self) -> Trouble | None:
        """What stands in the way now."""
        if self._first is not None:
            return self._blocked(self._first)
        return next(iter(self._hindrances.values()), self._quiet)

    # Exhausted messages.

    def block_changed(self, count: int, first: BlockedMessage | None) -> Line | None:
        """Take note of how many messages block, and of the first of them."""
        before, self.blocked_count, self._first = self.blocked_count, count, first
        if first is None:
            self._counted_in_log = 0
            return self._line("a subscription goes on; nothing blocks it any more")
        if before:
            return None
        self._counted_in_log = count
        return self._told(self._stopped_event(), self._blocked(first))

    def _stopped_event(self) -> str:
        if self._by_key:
            return "a key of a subscription is blocked by a message whose deliveries are used up"
        return "a subscription is blocked by a message whose deliveries are used up"

    def _blocked(self, first: BlockedMessage) -> Trouble:
        return Trouble(
            state="blocked",
            reason=_shown(first.reason),
            offset=first.offset,
            attempts=first.attempts,
            next_step=f"danube topics set-failure-policy {self._topic} -s {self._subscription} "
            "--poison-policy dead_letter (or drop)",
        )

    # What the broker itself cannot do.

    def hindered(self, by: Hindrance, reason: str, next_step: str) -> Line | None:
        """Take note that something the subscription needs fails, and will be tried again."""
        known = by in self._hindrances
        trouble = Trouble(state="stalled", reason=_shown(reason), next_step=next_step)
        self._hindrances[by] = trouble
        return None if known else self._told("a subscription is stalled", trouble)

    def freed(self, from_: Hindrance) -> Line | None:
        """Take note that it has succeeded."""
        if self._hindrances.pop(from_, None) is None:
            return None
        return self._line("a subscription goes on; what stalled it has passed")

    # Nothing happens.

    def look(self, progress: Progress, now_ms: int) -> Line | None:
        """See whether anything was settled since the last look; to be called now and then."""
        moved = progress.settlements != self._settlements
        self._settlements = progress.settlements
        if moved or not (progress.pending and progress.active_consumers):
            told, self._quiet, self._quiet_since_ms = self._quiet, None, None
            if told is not None:
                return self._line("a subscription goes on; what stalled it has passed")
            return self._more_keys()
        if self._quiet_since_ms is None:
            self._quiet_since_ms = now_ms
        quiet_ms = now_ms - self._quiet_since_ms
        if quiet_ms < patience_ms(progress.policy):
            return self._more_keys()
        known, self._quiet = self._quiet, self._nothing_settled(progress, quiet_ms)
        if known is not None or self._first is not None or self._hindrances:
            return self._more_keys()
        return self._told("a subscription is stalled", self._quiet)

    def _nothing_settled(self, progress: Progress, quiet_ms: int) -> Trouble:
        return Trouble(
            state="stalled",
            reason=f"nothing was settled for {quiet_ms // 1000} s, though "
            f"{progress.pending} messages are there and {progress.active_consumers} consumers",
            next_step="see what its consumers do: they must ack or nack what they receive; "
            f"danube subscriptions list {self._topic}",
        )

    def _more_keys(self) -> Line | None:
        """Tell of keys that were blocked since it was last told; each stands still alone."""
        if not self._by_key or self._first is None or self.blocked_count <= self._counted_in_log:
            return None
        self._counted_in_log = self.blocked_count
        return self._told("more keys of a subscription are blocked", self._blocked(self._first))

    # Words.

    def _told(self, event: str, trouble: Trouble) -> Line:
        fields = {
            "topic": self._topic,
            "subscription": self._subscription,
            "offset": trouble.offset,
            "attempts": trouble.attempts,
            "blocked": self.blocked_count or None,
            "reason": trouble.reason or "not given",
            "next": trouble.next_step,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        return Line(event=event, fields=given, is_bad=True)

    def _line(self, event: str) -> Line:
        fields = {"topic": self._topic, "subscription": self._subscription}
        return Line(event=event, fields=fields, is_bad=False)


def patience_ms(policy: FailurePolicy) -> int:
    """Return how long a subscription may settle nothing before it counts as stalled.

    A message may take until its timeout, and wait for its longest delay, before anything happens.
    """
    longest = max(policy.ack_timeout_ms, policy.max_redelivery_delay_ms)
    return max(STALLED_MS_MIN, 2 * longest)


def _shown(reason: str | None) -> str | None:
    """Return a stranger's words in one line, and not too many of them."""
    if reason is None:
        return None
    words = "".join(each if each.isprintable() else " " for each in reason)
    return words if len(words) <= REASON_SHOWN_MAX else f"{words[:REASON_SHOWN_MAX]}..."
