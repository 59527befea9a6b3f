"""What is counted, under which names, and how it reads to a Prometheus parser."""

from collections.abc import Callable, Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pydanube.observability import metrics as metrics_module
from pydanube.observability.counts import MirrorReading, SubscriptionReading, TopicReading
from pydanube.observability.exposition import Exposition, Histogram
from pydanube.observability.metric_table import METRICS, Metric
from pydanube.observability.metrics import BrokerMetrics, Sources
from pydanube.observability.process import read_process

COPIES = MirrorReading(
    lag_records={"2": 5}, waiting_records=3, waiting_bytes=300, backlog_bytes=0, short_topics=1
)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def in_this_thread(work: Callable[[], bytes]) -> bytes:
    return work()


class Broker:
    """The topics a broker would have, and its metrics."""

    def __init__(self) -> None:
        self.metrics = BrokerMetrics("7")
        self.topics: dict[str, TopicReading] = {}
        self.metrics.read_from(
            Sources(
                topics=self.topics.values,
                unsynced_bytes=lambda: 4096,
                journal_failed=lambda: False,
                process=read_process,
            )
        )

    def add(self, name: str, subscriptions: Sequence[str] = (), *, reliable: bool = True) -> None:
        readings = [
            SubscriptionReading(
                name=each, active_consumers=2, lag=30, pending_redelivery=4, blocked=1, delayed=5
            )
            for each in subscriptions
        ]
        self.topics[name] = TopicReading(
            name=name,
            reliable=reliable,
            active_producers=3,
            active_consumers=2,
            subscriptions=readings,
        )
        for each in subscriptions:
            self.metrics.topic(name).subscription(each)
        self.metrics.topic(name)

    async def text(self) -> str:
        return (await self.metrics.render(in_this_thread)).decode()

    async def value(self, name: str, **labels: str) -> float | None:
        samples = parsed(await self.text())
        return samples.get((name, frozenset({"broker": "7", **labels}.items())))


def parsed(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_topic_counts_what_its_batches_brought() -> None:
    broker = Broker()
    broker.add("/default/orders")
    topic = broker.metrics.topic("/default/orders")
    topic.published(10, 10_240, 3)
    topic.published(1, 1, 5)
    topic.refused("InvalidArgument")
    where = {"topic": "/default/orders"}
    assert await broker.value("danube_topic_messages_in_total", **where) == 11
    assert await broker.value("danube_topic_bytes_in_total", **where) == 10_241
    assert await broker.value("danube_topic_message_size_bytes_sum", **where) == 10_241
    assert await broker.value("danube_topic_message_size_bytes_count", **where) == 11
    assert await broker.value("danube_producer_send_latency_ms_sum", **where) == 35
    assert await broker.value("danube_wal_append_total", **where) == 11
    assert await broker.value("danube_wal_flush_total", **where) == 2
    assert await broker.value("danube_wal_flush_latency_ms_sum", **where) == 8
    for name, expected in (
        ("danube_producer_send_latency_ms", {0.5: 3, 0.9: 3, 0.95: 5, 0.99: 5, 0.999: 5}),
        ("danube_wal_flush_latency_ms", {0.5: 3, 0.9: 5, 0.95: 5, 0.99: 5, 0.999: 5}),
        ("danube_topic_message_size_bytes", {0.5: 1024, 0.9: 1024}),
    ):
        for quantile, value in expected.items():
            found = await broker.value(name, quantile=f"{quantile:g}", **where)
            assert found == pytest.approx(value, rel=0.025)
    assert await broker.value("danube_topic_active_producers", **where) == 3
    sent = {"result": "ok", "error_code": "OK", **where}
    refused = {"result": "error", "error_code": "InvalidArgument", **where}
    assert await broker.value("danube_producer_send_total", **sent) == 11
    assert await broker.value("danube_producer_send_total", **refused) == 1


async def test_a_best_effort_topic_appends_nothing() -> None:
    broker = Broker()
    broker.add("/default/chatter", reliable=False)
    broker.metrics.topic("/default/chatter").published(5, 50, 0)
    assert await broker.value("danube_wal_append_total", topic="/default/chatter") == 0


async def test_a_subscription_counts_what_its_dispatcher_observed() -> None:
    broker = Broker()
    broker.add("/default/orders", ["billing"])
    subscription = broker.metrics.topic("/default/orders").subscription("billing")
    subscription.poison_policy = "DeadLetter"
    subscription.delivered(7, 700)
    for number, what in enumerate(
        ["nack", "redelivery", "ack_timeout", "discarded", "exhausted", "dead_letter", "wake_up"], 1
    ):
        subscription.observed(what, number)
    subscription.observed("expired", 8)
    where = {"topic": "/default/orders", "subscription": "billing"}
    assert await broker.value("danube_consumer_messages_out_total", **where) == 7
    assert await broker.value("danube_consumer_bytes_out_total", **where) == 700
    assert await broker.value("danube_subscription_nack_total", **where) == 1
    assert await broker.value("danube_subscription_redelivery_total", **where) == 2
    assert await broker.value("danube_subscription_ack_timeout_total", **where) == 3
    assert await broker.value("danube_subscription_discarded_total", **where) == 4
    assert await broker.value("danube_subscription_expired_total", **where) == 8
    assert await broker.value("danube_subscription_lag_messages", **where) == 30
    assert await broker.value("danube_subscription_pending_redelivery", **where) == 4
    assert await broker.value("danube_subscription_terminal_blocked", **where) == 1
    assert await broker.value("danube_subscription_delayed", **where) == 5
    where["poison_policy"] = "DeadLetter"
    assert await broker.value("danube_subscription_retry_exhausted_total", **where) == 5
    assert await broker.value("danube_subscription_dlq_total", **where) == 6
    assert await broker.value("danube_dispatcher_heartbeat_polls_total") == 7


def test_an_observation_nobody_counts_is_a_bug() -> None:
    subscription = BrokerMetrics("1").topic("/default/a").subscription("s")
    with pytest.raises(AssertionError):
        subscription.observed("nak", 1)


async def test_every_publish_wakes_each_subscription() -> None:
    broker = Broker()
    broker.add("/default/orders", ["a", "b"])
    broker.metrics.topic("/default/orders").published(100, 100, 1)
    assert await broker.value("danube_dispatcher_notifier_polls_total") == 2


async def test_quantiles_tell_of_the_last_minute_and_sums_of_all() -> None:
    now_ms = 0
    metrics = BrokerMetrics("7", lambda: now_ms)
    topic = metrics.topic("/default/orders")
    where = frozenset({"broker": "7", "topic": "/default/orders"}.items())
    median = frozenset({*where, ("quantile", "0.5")})
    name = "danube_producer_send_latency_ms"

    async def seen_after(ms: int) -> Samples:
        nonlocal now_ms
        now_ms += ms
        return parsed((await metrics.render(in_this_thread)).decode())

    topic.published(1, 1, 400)
    assert (await seen_after(30_000))[name, median] == 400
    topic.published(1, 1, 20)
    topic.published(1, 1, 20)
    assert (await seen_after(29_999))[name, median] == pytest.approx(20, rel=0.025)
    assert (await seen_after(1))[name, median] == 20
    found = await seen_after(30_000)
    assert (name, median) not in found, "nothing was published for a minute"
    assert (found[f"{name}_sum", where], found[f"{name}_count", where]) == (440, 3)


async def test_the_journal_counts_its_syncs() -> None:
    broker = Broker()
    broker.metrics.journal.synced(0.002, 3, 500)
    broker.metrics.journal.synced(0.2, 2000, 1500)
    broker.metrics.journal.rotated("size")
    broker.metrics.journal.deleted("retention")
    journal = {"topic": "_journal"}
    assert await broker.value("danube_wal_file_rotate_total", reason="size", **journal) == 1
    assert await broker.value("danube_wal_delete_total", reason="retention", **journal) == 1
    assert await broker.value("danube_journal_bytes_total") == 2000
    assert await broker.value("danube_journal_unsynced_bytes") == 4096
    assert await broker.value("danube_journal_failed") == 0
    assert await broker.value("danube_journal_sync_seconds_bucket", le="0.001") == 0
    assert await broker.value("danube_journal_sync_seconds_bucket", le="0.0025") == 1
    assert await broker.value("danube_journal_sync_seconds_bucket", le="+Inf") == 2
    assert await broker.value("danube_journal_group_records_bucket", le="1024") == 1
    assert await broker.value("danube_journal_group_records_count") == 2


async def test_calls_are_named_as_dashboards_expect() -> None:
    broker = Broker()
    broker.metrics.rpc("/danube.ProducerService/SendMessage").ok += 2
    broker.metrics.rpc("/danube.ProducerService/SendMessage").errors += 1
    broker.metrics.rpc("/danube_admin.BrokerAdmin/ListBrokers").ok += 1
    send = {"service": "producer", "method": "send_message"}
    listing = {"service": "broker_admin", "method": "list_brokers"}
    assert await broker.value("danube_broker_rpc_total", result="ok", **send) == 2
    assert await broker.value("danube_broker_rpc_total", result="error", **send) == 1
    assert await broker.value("danube_broker_rpc_total", result="ok", **listing) == 1


async def test_broker_wide_numbers_are_there() -> None:
    broker = Broker()
    broker.add("/default/a")
    broker.add("/default/b")
    broker.metrics.assigned("7", "assign")
    broker.metrics.redirected("not_local", "default")
    assert await broker.value("danube_broker_topics_owned") == 2
    assert await broker.value("danube_leader_election_state") == 1
    assert (
        await broker.value("danube_broker_assignments_total", broker_id="7", action="assign") == 1
    )
    assert (
        await broker.value("danube_client_redirects_total", reason="not_local", topic_ns="default")
        == 1
    )
    resident = await broker.value("process_resident_memory_bytes")
    assert resident is not None
    assert resident > 1_000_000


async def test_the_text_holds_exactly_the_metrics_of_the_table_with_their_labels() -> None:
    broker = Broker()
    broker.add("/default/a", ["s"])
    broker.metrics.topic("/default/a").validated("warn", 2)
    broker.metrics.topic("/default/a").violated("payload_invalid", 1)
    subscription = broker.metrics.topic("/default/a").subscription("s")
    subscription.observed("exhausted", 1)
    subscription.observed("dead_letter", 1)
    broker.metrics.rpc("/danube.HealthCheck/HealthCheck").ok += 1
    broker.metrics.assigned("7", "assign")
    broker.metrics.redirected("not_local", "default")
    broker.metrics.moves = {("LoadImbalance",): 3}
    broker.metrics.journal.rotated("size")
    broker.metrics.journal.deleted("retention")
    broker.metrics.segments.uploaded("s3", 10, 0.5)
    broker.metrics.segments.upload_failed("s3", "timeout")
    broker.metrics.segments.segment_opened("/default/a", "s3")
    broker.metrics.segments.segment_bytes_read("/default/a", "s3", 10)
    broker.metrics.segments.read_failed("s3", "crc")
    broker.metrics.segments.handed_off("/default/a")
    broker.metrics.mirrors.read(COPIES)
    broker.metrics.mirrors.set_changed(1, 2)
    broker.metrics.mirrors.caught_up(2)
    broker.metrics.mirrors.caught_up_bytes(2, 10)
    broker.metrics.mirrors.fell_back(2)
    families = list(text_string_to_metric_families(await broker.text()))
    shown = {}
    for family in families:
        labels = {label for sample in family.samples for label in sample.labels} - {
            "le",
            "quantile",
        }
        full = family.name + ("_total" if family.type == "counter" else "")
        shown[full] = (family.type, labels, family.documentation)
    assert shown == {
        metric.name: (metric.kind, {"broker", *metric.labels}, metric.help) for metric in METRICS
    }


async def test_series_end_with_their_topic_and_subscription() -> None:
    broker = Broker()
    broker.add("/default/a", ["one", "two"])
    broker.add("/default/b", ["one"])
    broker.topics["/default/a"] = broker.topics["/default/b"]
    del broker.topics["/default/b"]
    broker.topics["/default/a"] = TopicReading(
        name="/default/a",
        reliable=True,
        active_producers=0,
        active_consumers=0,
        subscriptions=[
            SubscriptionReading(
                name="two", active_consumers=0, lag=0, pending_redelivery=0, blocked=0
            )
        ],
    )
    text = await broker.text()
    assert "/default/b" not in text
    assert 'subscription="two"' in text
    assert 'subscription="one"' not in text


async def test_topics_beyond_the_cap_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "TOPIC_SERIES_MAX", 2)
    broker = Broker()
    for number in range(5):
        broker.add(f"/default/t{number}", ["s"])
        topic = broker.metrics.topic(f"/default/t{number}")
        topic.published(10, 100, 1)
        topic.refused("Unavailable")
        topic.subscription("s").delivered(1, 1)
    name = "danube_topic_messages_in_total"
    assert await broker.value(name, topic="/default/t1") == 10
    assert await broker.value(name, topic="/default/t2") is None
    assert await broker.value(name, topic="_other") == 30
    assert await broker.value("danube_topic_active_producers", topic="_other") == 9
    other = {"topic": "_other", "subscription": "_other"}
    assert await broker.value("danube_consumer_messages_out_total", **other) == 3
    assert await broker.value("danube_subscription_lag_messages", **other) == 90

    del broker.topics["/default/t4"]
    assert await broker.value(name, topic="_other") == 30, "a counter never goes back"
    assert await broker.value("danube_topic_active_producers", topic="_other") == 6

    del broker.topics["/default/t0"]
    await broker.text()
    broker.add("/default/new")
    assert await broker.value(name, topic="/default/new") == 0, "the freed series is given again"


async def test_subscriptions_beyond_the_cap_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "SUBSCRIPTION_SERIES_MAX", 1)
    broker = Broker()
    broker.add("/default/t", ["one", "two", "three"])
    name = "danube_subscription_lag_messages"
    assert await broker.value(name, topic="/default/t", subscription="one") == 30
    assert await broker.value(name, topic="_other", subscription="_other") == 60


def test_what_is_gone_is_forgotten_even_if_nobody_collects() -> None:
    broker = Broker()
    for number in range(20_000):
        broker.metrics.topic(f"/default/t{number}")
    assert len(broker.metrics._topics) <= 4_096


async def test_texts_are_escaped_in_labels() -> None:
    out = Exposition('7"\\\n')
    metric = Metric("danube_x", "gauge", ("topic",), "Help.")
    out.add(metric, [(out.labels(("topic",), ('a"b\\c\nd',)), 1)])
    ((_, labels),) = parsed(out.text().decode())
    assert dict(labels) == {"broker": '7"\\\n', "topic": 'a"b\\c\nd'}


def test_a_histogram_puts_a_value_on_its_bound_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 7.5


async def test_the_text_is_made_by_the_hop() -> None:
    broker = Broker()
    asked: list[Callable[[], bytes]] = []

    async def hop(work: Callable[[], bytes]) -> bytes:
        asked.append(work)
        return b"made elsewhere"

    assert await broker.metrics.render(hop) == b"made elsewhere"
    assert len(asked) == 1


async def test_copies_are_told_by_mirror() -> None:
    metrics = BrokerMetrics("7")
    metrics.read_from(
        Sources(
            topics=lambda: (),
            unsynced_bytes=int,
            journal_failed=bool,
            mirrors=lambda: COPIES,
        )
    )
    for before, after in ((2, 2), (2, 1), (1, 2)):
        metrics.mirrors.set_changed(before, after)
    metrics.mirrors.caught_up(2)
    metrics.mirrors.caught_up_bytes(2, 1000)
    text = (await metrics.render(in_this_thread)).decode()
    for line in (
        'danube_mirror_lag_records{broker="7",mirror="2"} 5',
        'danube_mirror_waiting_records{broker="7"} 3',
        'danube_mirror_short_topics{broker="7"} 1',
        'danube_mirror_set_changes_total{broker="7",change="replaced"} 1',
        'danube_mirror_set_changes_total{broker="7",change="shrunk"} 1',
        'danube_mirror_set_changes_total{broker="7",change="grown"} 1',
        'danube_mirror_catch_up_bytes_total{broker="7",mirror="2"} 1000',
    ):
        assert line in text.splitlines(), line
