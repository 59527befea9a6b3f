"""What a broker says about its load, and how that is written into the metadata."""

import msgspec
from msgspec import Struct

from pydanube.errors import Corruption
from pydanube.model.ids import BrokerId

BYTES_PER_MEGABYTE = 1_000_000


class ResourceUsage(Struct, frozen=True, kw_only=True):
    """How busy the machine, or the container, was since the report before."""

    cpu_percent: float = 0.0
    """Of all cores, or of the container's quota: 0 to 100."""
    memory_percent: float = 0.0
    disk_bytes_per_second: float = 0.0
    network_bytes_per_second: float = 0.0


class TopicLoad(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How busy one topic was since the report before."""

    topic_name: str
    message_rate: float = 0.0
    """Published messages per second."""
    byte_rate: float = 0.0
    """Published bytes per second."""
    byte_rate_mbps: float = 0.0
    """The same in millions of bytes per second, whatever the name seems to say."""
    message_rate_out: float = 0.0
    """Messages per second sent to consumers, of all subscriptions together."""
    byte_rate_out: float = 0.0
    producer_count: int = 0
    consumer_count: int = 0
    subscription_count: int = 0
    backlog_messages: int = 0
    """Messages that subscriptions have not had acknowledged, summed."""
    served_since_ms: int | None = None
    """Wall clock: since when this broker has served the topic."""

    @property
    def client_count(self) -> int:
        """Producers and consumers together."""
        return self.producer_count + self.consumer_count


class LoadReport(Struct, frozen=True, kw_only=True):
    """A broker's whole report. The totals count all topics, also those that are not listed."""

    broker_id: BrokerId
    timestamp_ms: int
    """Wall clock of the broker that wrote it."""
    resources_usage: ResourceUsage | None = None
    """None in a broker's first report, for rates need two looks."""
    topics: tuple[TopicLoad, ...] = ()
    """The busiest ones, as many as fit."""
    topic_count: int = 0
    total_throughput_mbps: float = 0.0
    total_message_rate: float = 0.0
    total_message_rate_out: float = 0.0
    total_throughput_out_mbps: float = 0.0
    total_clients: int = 0
    total_lag_messages: int = 0


def encode_report(report: LoadReport) -> bytes:
    """Return a report as the metadata hold it."""
    return msgspec.json.encode(report)


def decode_report(value: bytes) -> LoadReport:
    """Read what `encode_report` wrote; fields of later versions are ignored."""
    try:
        return msgspec.json.decode(value, type=LoadReport)
    except msgspec.DecodeError as error:
        raise Corruption(f"a load report in the metadata cannot be read: {error}") from None
