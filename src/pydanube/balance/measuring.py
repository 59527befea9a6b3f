"""Turns counters into a load report: rates are differences between two looks."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from pydanube.balance.reports import BYTES_PER_MEGABYTE, LoadReport, ResourceUsage, TopicLoad
from pydanube.model.ids import BrokerId
from pydanube.model.machine_counters import MachineCounters

REPORT_BYTES_MAX = 768 * 1024
"""A metadata value has 1 MiB at most; see `metadata.commands`."""

_TOPIC_BYTES = 384
"""What a listed topic takes besides its name, at most."""
_SECONDS_MIN = 1.0
"""Shorter looks would make a rate of a single burst."""


class TopicCounters(Struct, frozen=True, kw_only=True):
    """What a broker has counted on one topic since it serves it, and what is true of it now."""

    topic_name: str
    served_since_ms: int
    """Wall clock. The counters began at 0 then."""
    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    producer_count: int = 0
    consumer_count: int = 0
    subscription_count: int = 0
    backlog_messages: int = 0


class BrokerCounters(Struct, frozen=True, kw_only=True):
    """One look at everything a report is made of."""

    at_ms: int
    """Wall clock, for the report's own time and the age of topics."""
    machine: MachineCounters | None = None
    topics: Mapping[str, TopicCounters] = {}


def report_between(
    broker: BrokerId, before: BrokerCounters | None, after: BrokerCounters
) -> LoadReport:
    """Make the report that two looks at one broker say; with one look, rates since it served.

    Counters that went backwards belong to a topic that was closed and opened in between, and
    count from 0.
    """
    earlier = before.topics if before is not None else {}
    before_ms = before.at_ms if before is not None else None
    loads = [
        _topic_load(earlier.get(name), counters, before_ms, after.at_ms)
        for name, counters in after.topics.items()
    ]
    machine = before.machine if before is not None else None
    return LoadReport(
        broker_id=broker,
        timestamp_ms=after.at_ms,
        resources_usage=_usage_between(machine, after.machine),
        topics=_busiest(loads),
        topic_count=len(loads),
        total_throughput_mbps=_rounded(sum(each.byte_rate_mbps for each in loads), 6),
        total_message_rate=_rounded(sum(each.message_rate for each in loads)),
        total_message_rate_out=_rounded(sum(each.message_rate_out for each in loads)),
        total_throughput_out_mbps=_rounded(
            sum(each.byte_rate_out for each in loads) / BYTES_PER_MEGABYTE, 6
        ),
        total_clients=sum(each.client_count for each in loads),
        total_lag_messages=sum(each.backlog_messages for each in loads),
    )


def usage_between(before: MachineCounters, after: MachineCounters) -> ResourceUsage:
    """Return how busy the machine was between two looks."""
    seconds = max(_SECONDS_MIN, (after.at_ms - before.at_ms) / 1000)
    cpu = max(0.0, after.cpu_seconds - before.cpu_seconds) / (seconds * after.cpu_cores)
    memory = after.memory_used_bytes / max(1, after.memory_limit_bytes)
    return ResourceUsage(
        cpu_percent=_percent(cpu),
        memory_percent=_percent(memory),
        disk_bytes_per_second=_rounded(max(0, after.disk_bytes - before.disk_bytes) / seconds),
        network_bytes_per_second=_rounded(
            max(0, after.network_bytes - before.network_bytes) / seconds
        ),
    )


def _usage_between(
    before: MachineCounters | None, after: MachineCounters | None
) -> ResourceUsage | None:
    return usage_between(before, after) if before is not None and after is not None else None


def _topic_load(
    before: TopicCounters | None, after: TopicCounters, before_ms: int | None, now_ms: int
) -> TopicLoad:
    if before is None or _began_anew(before, after):
        before = TopicCounters(topic_name=after.topic_name, served_since_ms=after.served_since_ms)
    # A topic that came in between was counted for a part of the time only.
    since_ms = max(after.served_since_ms, before_ms if before_ms is not None else 0)
    seconds = max(_SECONDS_MIN, (now_ms - since_ms) / 1000)
    byte_rate = (after.bytes_in - before.bytes_in) / seconds
    return TopicLoad(
        topic_name=after.topic_name,
        message_rate=_rounded((after.messages_in - before.messages_in) / seconds),
        byte_rate=_rounded(byte_rate),
        byte_rate_mbps=_rounded(byte_rate / BYTES_PER_MEGABYTE, 6),
        message_rate_out=_rounded((after.messages_out - before.messages_out) / seconds),
        byte_rate_out=_rounded((after.bytes_out - before.bytes_out) / seconds),
        producer_count=after.producer_count,
        consumer_count=after.consumer_count,
        subscription_count=after.subscription_count,
        backlog_messages=after.backlog_messages,
        served_since_ms=after.served_since_ms,
    )


def _began_anew(before: TopicCounters, after: TopicCounters) -> bool:
    return (
        before.served_since_ms != after.served_since_ms
        or before.messages_in > after.messages_in
        or before.bytes_in > after.bytes_in
        or before.messages_out > after.messages_out
        or before.bytes_out > after.bytes_out
    )


def _busiest(loads: Iterable[TopicLoad]) -> tuple[TopicLoad, ...]:
    """Return as many topics as a report may hold, by name; the busiest stay."""
    kept: list[TopicLoad] = []
    size = 0
    for load in sorted(loads, key=_busyness, reverse=True):
        size += len(load.topic_name.encode()) + _TOPIC_BYTES
        if size > REPORT_BYTES_MAX:
            break
        kept.append(load)
    return tuple(sorted(kept, key=lambda load: load.topic_name))


def _busyness(load: TopicLoad) -> tuple[float, float, int, int, str]:
    return (
        load.byte_rate + load.byte_rate_out,
        load.message_rate + load.message_rate_out,
        load.client_count,
        load.backlog_messages,
        load.topic_name,
    )


def _percent(share: float) -> float:
    return _rounded(min(1.0, max(0.0, share)) * 100)


def _rounded(value: float, digits: int = 3) -> float:
    """Return a number that is short in JSON."""
    return round(value, digits)
