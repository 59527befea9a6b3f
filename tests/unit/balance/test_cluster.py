"""The leader's view: whose topic is whose, and what moves with a topic."""

import pytest

from pydanube.balance.cluster import BrokerMode, ClusterLoad, Figures, cluster_load
from pydanube.balance.reports import ResourceUsage
from pydanube.model.ids import BrokerId
from tests.support.balance_builders import NOW_MS, report

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
ACTIVE: dict[BrokerId, BrokerMode] = {ONE: "active", TWO: "active"}
USAGE = ResourceUsage(
    cpu_percent=80.0,
    memory_percent=50.0,
    disk_bytes_per_second=400.0,
    network_bytes_per_second=1000.0,
)


def topics(cluster: ClusterLoad, broker: BrokerId) -> list[str]:
    return sorted(cluster.brokers[broker].topics)


def test_a_broker_counts_as_soon_as_it_is_registered() -> None:
    cluster = cluster_load([report(1, {"/a/x": 1.0})], {TWO: "active", ONE: "active"})
    assert list(cluster.brokers) == [ONE, TWO]
    assert cluster.brokers[TWO].figures == Figures()
    assert cluster.brokers[TWO].reported_ms is None


def test_reports_of_brokers_that_are_gone_are_left_out() -> None:
    cluster = cluster_load([report(9, {"/a/x": 1.0})], ACTIVE, {"/a/x": BrokerId(9)})
    assert cluster.owner_of("/a/x") is None


def test_the_age_of_a_report_is_told_by_the_leaders_clock() -> None:
    late = report(1, {}, at_ms=NOW_MS - 3_600_000)
    cluster = cluster_load([late], ACTIVE, {}, {ONE: NOW_MS, TWO: NOW_MS, THREE: NOW_MS})
    assert cluster.brokers[ONE].reported_ms == NOW_MS
    assert cluster.brokers[TWO].reported_ms is None
    assert cluster_load([late], ACTIVE).brokers[ONE].reported_ms == NOW_MS - 3_600_000


def test_a_topic_in_two_reports_belongs_to_the_newer_one() -> None:
    old = report(2, {"/a/x": 3.0, "/a/y": 1.0}, at_ms=NOW_MS - 1)
    cluster = cluster_load([report(1, {"/a/x": 5.0}), old], ACTIVE)
    assert topics(cluster, ONE) == ["/a/x"]
    assert topics(cluster, TWO) == ["/a/y"]
    assert cluster.brokers[TWO].figures.megabytes == 1.0
    assert cluster.brokers[TWO].figures.topics == 1.0


def test_only_the_last_report_of_a_broker_counts() -> None:
    reports = [report(1, {"/a/x": 5.0}), report(1, {"/a/y": 3.0}, at_ms=NOW_MS - 1)]
    cluster = cluster_load(reports, ACTIVE)
    assert topics(cluster, ONE) == ["/a/x"]
    assert cluster.brokers[ONE].figures.megabytes == 5.0


@pytest.mark.parametrize("newer", [ONE, TWO])
def test_assignments_are_the_truth_whatever_reports_say(newer: BrokerId) -> None:
    reports = [
        report(1, {"/a/x": 5.0}, at_ms=NOW_MS + (newer == ONE)),
        report(2, {"/a/x": 4.0}, at_ms=NOW_MS + (newer == TWO)),
    ]
    cluster = cluster_load(reports, ACTIVE, {"/a/x": TWO})
    assert topics(cluster, ONE) == []
    assert cluster.brokers[ONE].figures.megabytes == 0.0
    assert cluster.brokers[TWO].figures.megabytes == 4.0


def test_a_topic_that_moved_since_the_report_takes_its_share_along() -> None:
    first = report(1, {"/a/x": 3.0, "/a/y": 1.0}, usage=USAGE)
    cluster = cluster_load([first, report(2, {})], ACTIVE, {"/a/x": TWO, "/a/y": ONE})
    assert topics(cluster, TWO) == ["/a/x"]
    assert cluster.brokers[TWO].figures == Figures(
        topics=1.0, megabytes=3.0, cpu=60.0, disk=300.0, network=750.0
    )
    assert cluster.brokers[ONE].figures == Figures(
        topics=1.0, megabytes=1.0, cpu=20.0, memory=50.0, disk=100.0, network=250.0
    )


def test_an_assigned_topic_that_nobody_reported_has_no_load_yet() -> None:
    cluster = cluster_load([], ACTIVE, {"/a/new": TWO})
    assert cluster.brokers[TWO].figures == Figures(topics=1.0)
    assert not cluster.brokers[TWO].topics["/a/new"].reported


def test_a_reported_topic_that_is_assigned_to_nobody_is_on_its_way() -> None:
    cluster = cluster_load([report(1, {"/a/x": 3.0})], ACTIVE, {})
    assert cluster.owner_of("/a/x") is None
    assert cluster.brokers[ONE].figures == Figures()


def test_topics_that_are_not_listed_count_in_the_totals() -> None:
    import msgspec

    short = msgspec.structs.replace(
        report(1, {"/a/x": 3.0}), topic_count=500, total_throughput_mbps=10.0, total_clients=40
    )
    by_report = cluster_load([short], ACTIVE).brokers[ONE].figures
    assert (by_report.topics, by_report.megabytes, by_report.clients) == (500.0, 10.0, 40.0)
    owners = {"/a/x": ONE, **{f"/a/{index}": ONE for index in range(499)}}
    by_owners = cluster_load([short], ACTIVE, owners).brokers[ONE].figures
    assert by_owners == by_report


def test_an_assignment_takes_the_topic_from_whoever_had_it() -> None:
    cluster = cluster_load([report(1, {"/a/x": 3.0})], ACTIVE)
    moved = cluster.with_assignment("/a/x", TWO)
    assert moved.owner_of("/a/x") == TWO
    assert moved.brokers[ONE].figures == Figures()
    assert moved.brokers[TWO].figures == cluster.brokers[ONE].figures
    assert cluster.owner_of("/a/x") == ONE
    assert moved.with_assignment("/a/x", ONE) == cluster
