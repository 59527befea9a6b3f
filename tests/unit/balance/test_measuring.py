"""Rates are differences between two looks, of what happened in between and nothing else."""

import pytest

from pydanube.balance.measuring import (
    REPORT_BYTES_MAX,
    BrokerCounters,
    TopicCounters,
    report_between,
    usage_between,
)
from pydanube.balance.reports import TopicLoad, decode_report, encode_report
from pydanube.errors import Corruption
from pydanube.metadata.commands import VALUE_BYTES_MAX
from pydanube.model.ids import BrokerId
from pydanube.model.machine_counters import MachineCounters
from tests.support.balance_builders import NOW_MS

BROKER = BrokerId(7)
TOPIC = "/default/orders"


def look(at_ms: int, *topics: TopicCounters) -> BrokerCounters:
    return BrokerCounters(at_ms=at_ms, topics={each.topic_name: each for each in topics})


def counters(messages: int, since_ms: int = 0, name: str = TOPIC, **more: int) -> TopicCounters:
    return TopicCounters(
        topic_name=name,
        served_since_ms=since_ms,
        messages_in=messages,
        bytes_in=messages * 500,
        messages_out=messages * 2,
        bytes_out=messages * 1000,
        **more,
    )


def only_topic(before: BrokerCounters | None, after: BrokerCounters) -> TopicLoad:
    (load,) = report_between(BROKER, before, after).topics
    return load


def test_a_topic_has_the_rates_of_the_time_between_two_looks() -> None:
    before = look(NOW_MS, counters(1_000_000))
    state = {"producer_count": 2, "consumer_count": 3, "subscription_count": 1}
    after = look(NOW_MS + 30_000, counters(1_060_000, backlog_messages=40, **state))
    assert only_topic(before, after) == TopicLoad(
        topic_name=TOPIC,
        message_rate=2_000,
        byte_rate=1_000_000,
        byte_rate_mbps=1.0,
        message_rate_out=4_000,
        byte_rate_out=2_000_000,
        producer_count=2,
        consumer_count=3,
        subscription_count=1,
        backlog_messages=40,
        served_since_ms=0,
    )


@pytest.mark.parametrize(
    ("before", "after", "message_rate"),
    [
        # Opened in between: what it did is not spread over the time before.
        (look(NOW_MS), look(NOW_MS + 30_000, counters(1_000, NOW_MS + 20_000)), 100),
        # The first look of a broker that has served the topic for long.
        (None, look(NOW_MS, counters(5_000, NOW_MS - 50_000)), 100),
        # Closed and opened again, so that the counters began anew.
        (
            look(NOW_MS, counters(9_000)),
            look(NOW_MS + 30_000, counters(9_500, NOW_MS + 20_000)),
            950,
        ),
        (look(NOW_MS, counters(9_000)), look(NOW_MS + 10_000, counters(500)), 50),
        # Looks in the same instant make no infinite rates.
        (look(NOW_MS, counters(100)), look(NOW_MS, counters(150)), 50),
        # The clock was set back.
        (look(NOW_MS, counters(100)), look(NOW_MS - 5_000, counters(150)), 50),
    ],
)
def test_counters_that_began_anew_count_from_then(
    before: BrokerCounters | None, after: BrokerCounters, message_rate: float
) -> None:
    assert only_topic(before, after).message_rate == message_rate


def test_a_topic_that_left_is_in_no_report() -> None:
    report = report_between(BROKER, look(NOW_MS, counters(10)), look(NOW_MS + 1_000))
    assert report.topics == ()
    assert report.topic_count == 0


def machine(at_ms: int, cpu: float, disk: int, network: int, memory: int = 3) -> MachineCounters:
    return MachineCounters(
        at_ms=at_ms,
        cpu_seconds=cpu,
        cpu_cores=2.0,
        memory_used_bytes=memory,
        memory_limit_bytes=4,
        disk_bytes=disk,
        network_bytes=network,
    )


def test_resources_are_used_by_parts_and_by_the_second() -> None:
    usage = usage_between(machine(0, 100.0, 1_000, 5_000), machine(10_000, 105.0, 21_000, 5_500))
    assert usage.cpu_percent == 25.0
    assert usage.memory_percent == 75.0
    assert usage.disk_bytes_per_second == 2_000
    assert usage.network_bytes_per_second == 50


def test_resources_stay_between_0_and_100_whatever_the_counters_do() -> None:
    usage = usage_between(machine(0, 9.0, 9, 9), machine(1_000, 1.0, 1, 1, memory=9))
    assert (usage.cpu_percent, usage.memory_percent) == (0.0, 100.0)
    assert (usage.disk_bytes_per_second, usage.network_bytes_per_second) == (0.0, 0.0)
    assert usage_between(machine(0, 0, 0, 0), machine(1_000, 99.0, 0, 0)).cpu_percent == 100.0


def test_the_first_report_knows_no_resources() -> None:
    first = BrokerCounters(at_ms=NOW_MS, machine=machine(0, 1.0, 1, 1))
    second = BrokerCounters(at_ms=NOW_MS + 1_000, machine=machine(1_000, 2.0, 1, 1))
    assert report_between(BROKER, None, first).resources_usage is None
    usage = report_between(BROKER, first, second).resources_usage
    assert usage is not None
    assert usage.cpu_percent == 50.0


def test_a_report_survives_the_metadata() -> None:
    report = report_between(BROKER, None, look(NOW_MS, counters(5), counters(7, name="/a/b")))
    assert decode_report(encode_report(report)) == report


@pytest.mark.parametrize("value", [b"", b"{", b"null", b'{"broker_id": "seven"}', b"\xff"])
def test_what_is_no_report_is_refused(value: bytes) -> None:
    with pytest.raises(Corruption, match="load report"):
        decode_report(value)


def test_a_report_of_very_many_topics_lists_the_busiest_and_fits_into_the_metadata() -> None:
    long = "ß" * 240  # Two bytes each.
    topics = [counters(index * 10**9, name=f"/{long}/{index:06}") for index in range(4_000)]
    report = report_between(BROKER, None, look(NOW_MS, *topics))
    listed = [int(each.topic_name[-6:]) for each in report.topics]
    assert len(encode_report(report)) < VALUE_BYTES_MAX
    assert len(encode_report(report)) > REPORT_BYTES_MAX / 2
    assert listed == list(range(4_000 - len(listed), 4_000))
    assert report.topic_count == 4_000
    total = sum(each.messages_in for each in topics) / (NOW_MS / 1000)
    assert report.total_message_rate == pytest.approx(total)
