"""The numbers of one topic, one subscription and the journal. Counting is adding to a number."""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from pydanube.observability.distribution import Distribution
from pydanube.observability.exposition import Histogram, Labels

_SYNC_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_TOPICS_MAX = 1_000
_OTHER = "_other"
_GROUP_RECORDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class SubscriptionReading(Struct, frozen=True, kw_only=True):
    """What is true of a subscription now."""

    name: str
    active_consumers: int
    lag: int
    pending_redelivery: int
    blocked: int
    stalled: bool = False
    delayed: int = 0
    hold_lapsed: bool = False


class TopicReading(Struct, frozen=True, kw_only=True):
    """What is true of a topic now."""

    name: str
    reliable: bool
    active_producers: int
    active_consumers: int
    subscriptions: Sequence[SubscriptionReading]


class WakeUps:
    """How often subscriptions of the broker were woken, and by what."""

    def __init__(self) -> None:
        self.by_timer = 0
        self.by_messages = 0


class SubscriptionMetrics:
    """Counts what happens in one subscription."""

    COUNTS = (
        "messages_out",
        "bytes_out",
        "nacks",
        "redeliveries",
        "ack_timeouts",
        "discarded",
        "retry_exhausted",
        "dead_letters",
        "expired",
    )
    GAUGES = (
        "active_consumers",
        "lag",
        "pending_redelivery",
        "blocked",
        "stalled",
        "delayed",
        "hold_lapsed",
    )

    def __init__(self, wake_ups: WakeUps, *, own_series: bool) -> None:
        self.messages_out = 0
        self.bytes_out = 0
        self.nacks = 0
        self.redeliveries = 0
        self.ack_timeouts = 0
        self.discarded = 0
        self.retry_exhausted: dict[Labels, int] = {}
        self.dead_letters: dict[Labels, int] = {}
        self.active_consumers = 0
        self.lag = 0
        self.pending_redelivery = 0
        self.blocked = 0
        self.stalled = 0
        self.delayed = 0
        self.hold_lapsed = 0
        self.expired = 0
        self.own_series = own_series
        self.poison_policy = "Block"
        """What becomes of exhausted messages; whoever configures the subscription sets it."""
        self._wake_ups = wake_ups

    def delivered(self, count: int, payload_bytes: int) -> None:
        """Count messages that were sent to a consumer together."""
        self.messages_out += count
        self.bytes_out += payload_bytes

    def observed(self, what: str, count: int) -> None:
        """Count what a dispatcher or its pump has seen."""
        match what:
            case "nack":
                self.nacks += count
            case "redelivery":
                self.redeliveries += count
            case "ack_timeout":
                self.ack_timeouts += count
            case "discarded":
                self.discarded += count
            case "exhausted":
                count_up(self.retry_exhausted, (self.poison_policy,), count)
            case "dead_letter":
                count_up(self.dead_letters, ("DeadLetter",), count)
            case "expired":
                self.expired += count
            case "wake_up":
                self._wake_ups.by_timer += count
            case _:
                raise AssertionError(f"nobody counts {what!r}")

    def read(self, reading: SubscriptionReading) -> None:
        """Take over what is true now."""
        self.active_consumers = reading.active_consumers
        self.lag = reading.lag
        self.pending_redelivery = reading.pending_redelivery
        self.blocked = reading.blocked
        self.stalled = int(reading.stalled)
        self.delayed = reading.delayed
        self.hold_lapsed = int(reading.hold_lapsed)


class TopicMetrics:
    """Counts what happens on one topic, a batch at a time."""

    COUNTS = (
        "messages_in",
        "bytes_in",
        "message_size",
        "send_latency_ms",
        "flush_latency_ms",
        "appends",
        "append_bytes",
        "refusals",
        "validations",
        "validation_failures",
    )
    GAUGES = ("active_producers", "active_consumers", "active_subscriptions")

    def __init__(
        self, wake_ups: WakeUps, *, own_series: bool, admit_subscription: Callable[[bool], bool]
    ) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.message_size = Distribution()
        self.send_latency_ms = Distribution()
        self.flush_latency_ms = Distribution()
        """Of reliable topics: how long a batch took until a sync had made it durable."""
        self.appends = 0
        self.append_bytes = 0
        self.refusals: dict[Labels, int] = {}
        self.validations: dict[Labels, int] = {}
        self.validation_failures: dict[Labels, int] = {}
        self.active_producers = 0
        self.active_consumers = 0
        self.active_subscriptions = 0
        self.own_series = own_series
        self.subscriptions: dict[str, SubscriptionMetrics] = {}
        self._wake_ups = wake_ups
        self._admit_subscription = admit_subscription

    def published(
        self, count: int, payload_bytes: int, latency_ms: float, *, durably: bool = True
    ) -> None:
        """Count messages that were accepted together, durably or at best effort."""
        self.messages_in += count
        self.bytes_in += payload_bytes
        self.message_size.observe(payload_bytes, count)
        self.send_latency_ms.observe(latency_ms * count, count)
        if durably:
            self.flush_latency_ms.observe(latency_ms)
        self._wake_ups.by_messages += len(self.subscriptions)

    def refused(self, error_code: str, count: int = 1) -> None:
        """Count messages that were not accepted, by the name of the status they were given."""
        count_up(self.refusals, ("error", error_code), count)

    def validated(self, policy: str, count: int) -> None:
        """Count messages that were held against the topic's schema together."""
        count_up(self.validations, (policy,), count)

    def violated(self, reason: str, count: int) -> None:
        """Count messages that were not what the schema says, refused or not."""
        count_up(self.validation_failures, (reason,), count)

    def subscription(self, name: str) -> SubscriptionMetrics:
        """Return the numbers of one subscription, the same as long as it exists."""
        metrics = self.subscriptions.get(name)
        if metrics is None:
            own = self._admit_subscription(self.own_series)
            metrics = SubscriptionMetrics(self._wake_ups, own_series=own)
            self.subscriptions[name] = metrics
        return metrics

    @property
    def flushes(self) -> int:
        """How many batches syncs have made durable."""
        return self.flush_latency_ms.count

    def turn(self) -> None:
        """Let quantiles forget what is long ago."""
        for each in (self.message_size, self.send_latency_ms, self.flush_latency_ms):
            each.turn()

    @property
    def sends(self) -> dict[Labels, int]:
        """Publishes by result."""
        return {("ok", "OK"): self.messages_in, **self.refusals}

    def read(self, reading: TopicReading) -> None:
        """Take over what is true now."""
        self.active_producers = reading.active_producers
        self.active_consumers = reading.active_consumers
        self.active_subscriptions = len(reading.subscriptions)
        if reading.reliable:
            self.appends = self.messages_in
            self.append_bytes = self.bytes_in


class JournalMetrics:
    """Counts what the journal does, a group commit at a time."""

    def __init__(self) -> None:
        self.bytes = 0
        self.sync_seconds = Histogram(_SYNC_SECONDS)
        self.group_records = Histogram(_GROUP_RECORDS)
        self.rotations: dict[Labels, int] = {}
        self.deletions: dict[Labels, int] = {}
        self.unsynced_bytes = 0
        self.failed = 0
        self.waiting = 0

    def synced(self, seconds: float, records: int, byte_count: int) -> None:
        """Count one group made durable."""
        self.bytes += byte_count
        self.sync_seconds.observe(seconds)
        self.group_records.observe(records)

    def rotated(self, reason: str) -> None:
        """Count a new journal file."""
        count_up(self.rotations, (reason,), 1)

    def deleted(self, reason: str) -> None:
        """Count a journal file that is gone."""
        count_up(self.deletions, (reason,), 1)


class SegmentMetrics:
    """Counts what goes to the segment store and comes back."""

    def __init__(self) -> None:
        self.uploads: dict[Labels, int] = {}
        self.upload_bytes: dict[Labels, int] = {}
        self.upload_failures: dict[Labels, int] = {}
        self.lists = 0
        self.segments_read: dict[Labels, int] = {}
        self.read_bytes: dict[Labels, int] = {}
        self.reader_errors: dict[Labels, int] = {}
        self.handoffs: dict[Labels, int] = {}
        self.unexported_bytes = 0
        self.topics_failing = 0
        self.exports_failed = 0
        self.expired = 0
        self.joined = 0
        self.upload_latency_ms = Distribution()
        self.list_latency_ms = Distribution()

    def uploaded(self, provider: str, byte_count: int, seconds: float) -> None:
        """Count a segment that was written."""
        count_up(self.uploads, (provider,), 1)
        count_up(self.upload_bytes, (provider,), byte_count)
        self.upload_latency_ms.observe(seconds * 1000)

    def upload_failed(self, provider: str, reason: str) -> None:
        """Count an attempt that did not succeed."""
        count_up(self.upload_failures, (provider, reason), 1)

    def listed(self, seconds: float) -> None:
        """Count a listing of the store."""
        self.lists += 1
        self.list_latency_ms.observe(seconds * 1000)

    def segment_opened(self, topic: str, provider: str) -> None:
        """Count a segment that is read."""
        _count_bounded(self.segments_read, (topic, provider), 1)

    def segment_bytes_read(self, topic: str, provider: str, byte_count: int) -> None:
        """Count bytes that were fetched from the store."""
        _count_bounded(self.read_bytes, (topic, provider), byte_count)

    def read_failed(self, provider: str, reason: str) -> None:
        """Count a segment that could not be read."""
        count_up(self.reader_errors, (provider, reason), 1)

    def handed_off(self, topic: str) -> None:
        """Count a reader that went on from segments to the journal or the cache."""
        _count_bounded(self.handoffs, (topic,), 1)

    def turn(self) -> None:
        """Let quantiles forget what is long ago."""
        self.upload_latency_ms.turn()
        self.list_latency_ms.turn()


class MirrorReading(Struct, frozen=True, kw_only=True):
    """What is true of the copies of this broker's topics now."""

    lag_records: dict[str, int]
    """By mirror, over all topics."""
    waiting_records: int
    waiting_bytes: int
    backlog_bytes: int
    short_topics: int


class MirrorMetrics:
    """Counts what happens to the copies of this broker's topics."""

    def __init__(self) -> None:
        self.lag_records: dict[Labels, int] = {}
        self.waiting_records = 0
        self.waiting_bytes = 0
        self.backlog_bytes = 0
        self.short_topics = 0
        self.set_changes: dict[Labels, int] = {}
        self.catch_ups: dict[Labels, int] = {}
        self.catch_up_bytes: dict[Labels, int] = {}
        self.setbacks: dict[Labels, int] = {}

    def set_changed(self, before: int, after: int) -> None:
        """Count a set of so many members that took the place of another."""
        what = "replaced" if after == before else "grown" if after > before else "shrunk"
        count_up(self.set_changes, (what,), 1)

    def caught_up(self, mirror: int) -> None:
        """Count a copy that was brought up to date from the journal."""
        count_up(self.catch_ups, (str(mirror),), 1)

    def caught_up_bytes(self, mirror: int, byte_count: int) -> None:
        """Count what was sent from the journal for that."""
        count_up(self.catch_up_bytes, (str(mirror),), byte_count)

    def fell_back(self, mirror: int) -> None:
        """Count a copy that lacked something though it followed."""
        count_up(self.setbacks, (str(mirror),), 1)

    def read(self, reading: MirrorReading) -> None:
        """Take over what is true now."""
        self.lag_records = {(mirror,): lag for mirror, lag in reading.lag_records.items()}
        self.waiting_records = reading.waiting_records
        self.waiting_bytes = reading.waiting_bytes
        self.backlog_bytes = reading.backlog_bytes
        self.short_topics = reading.short_topics


class RpcMetrics:
    """Counts the calls of one method."""

    __slots__ = ("errors", "ok")

    def __init__(self) -> None:
        self.ok = 0
        self.errors = 0


def count_up(table: dict[Labels, int], key: Labels, count: int) -> None:
    """Add to one entry of a table."""
    table[key] = table.get(key, 0) + count


def _count_bounded(table: dict[Labels, int], key: Labels, count: int) -> None:
    """Add to one entry of a table whose first label is a topic; topics beyond a cap share one."""
    if key not in table and len(table) >= _TOPICS_MAX:
        key = (_OTHER, *key[1:])
    count_up(table, key, count)


def add_up(target: object, source: object, names: Iterable[str]) -> None:
    """Add the named numbers, tables and distributions of `source` to those of `target`."""
    for name in names:
        value = getattr(source, name)
        if isinstance(value, Distribution):
            getattr(target, name).merge(value)
        elif isinstance(value, dict):
            for key, count in dict(value).items():
                count_up(getattr(target, name), key, count)
        else:
            setattr(target, name, getattr(target, name) + value)
