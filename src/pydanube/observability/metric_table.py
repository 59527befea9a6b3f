"""Every metric the broker serves: name, kind, labels and what it counts.

The names and labels are Danube's where Danube has the metric. The reference page and the exposition
are both made from these tables, whose keys name the attributes that hold the values.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Kind = Literal["counter", "gauge", "summary", "histogram"]

OTHER = "_other"
"""Stands for every topic or subscription beyond the cap on series."""
JOURNAL = "_journal"
"""Stands where Danube names a topic and we have one journal for all of them."""


LATELY = "with quantiles of the last minute, or since it was last asked for"


class Metric(Struct, frozen=True):
    """One metric. All of them carry the label `broker` in addition."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


def _topic(name: str, kind: Kind, help_text: str, *labels: str) -> Metric:
    return Metric(f"danube_{name}", kind, ("topic", *labels), help_text)


def _subscription(name: str, kind: Kind, help_text: str, *labels: str) -> Metric:
    return Metric(f"danube_{name}", kind, ("topic", "subscription", *labels), help_text)


BROKER_METRICS: Mapping[str, Metric] = {
    "topics_owned": Metric("danube_broker_topics_owned", "gauge", (), "Topics served here."),
    "leader": Metric(
        "danube_leader_election_state", "gauge", (), "1 when this broker leads; one alone does."
    ),
    "rpc_calls": Metric(
        "danube_broker_rpc_total",
        "counter",
        ("service", "method", "result"),
        "Calls answered, by result: ok or error.",
    ),
    "assignments": Metric(
        "danube_broker_assignments_total",
        "counter",
        ("broker_id", "action"),
        "Topics this broker began to serve (assign) or ceased to (unassign).",
    ),
    "redirects": Metric(
        "danube_client_redirects_total",
        "counter",
        ("reason", "topic_ns"),
        "Lookups that named another broker. One broker alone never does.",
    ),
    "imbalance": Metric(
        "danube_cluster_imbalance_cv",
        "gauge",
        (),
        "How unevenly the brokers are loaded, as the leader sees it; 0 on others.",
    ),
    "moves": Metric(
        "danube_rebalancing_moves_total",
        "counter",
        ("reason",),
        "Topics this broker, leading, moved to even out the load.",
    ),
    "failed_moves": Metric(
        "danube_rebalancing_failures_total", "counter", (), "Moves that came to nothing."
    ),
    "cycle_seconds": Metric(
        "danube_rebalancing_cycle_duration_seconds",
        "summary",
        (),
        f"Seconds a look at the load took, when one was due, with the moves it led to, {LATELY}.",
    ),
    "timer_wake_ups": Metric(
        "danube_dispatcher_heartbeat_polls_total",
        "counter",
        (),
        "Times a subscription woke because a timeout or a retry was due.",
    ),
    "message_wake_ups": Metric(
        "danube_dispatcher_notifier_polls_total",
        "counter",
        (),
        "Times a subscription woke because messages came in.",
    ),
}

TOPIC_METRICS: Mapping[str, Metric] = {
    "messages_in": _topic("topic_messages_in_total", "counter", "Messages accepted."),
    "bytes_in": _topic("topic_bytes_in_total", "counter", "Payload bytes accepted."),
    "message_size": _topic(
        "topic_message_size_bytes",
        "summary",
        f"Payload sizes, {LATELY}. Messages are counted by the batch, each with its average size.",
    ),
    "sends": _topic(
        "producer_send_total",
        "counter",
        "Publishes answered, by result and status.",
        "result",
        "error_code",
    ),
    "send_latency_ms": _topic(
        "producer_send_latency_ms",
        "summary",
        "Milliseconds from a message's batch being closed until it was as durable as promised, "
        f"{LATELY}. All messages of a batch count with its latency.",
    ),
    "appends": _topic(
        "wal_append_total", "counter", "Messages of reliable topics stored in the journal."
    ),
    "append_bytes": _topic("wal_append_bytes_total", "counter", "Payload bytes of those messages."),
    "flushes": _topic(
        "wal_flush_total",
        "counter",
        "Batches of reliable topics made durable. One sync of the journal serves many of them, and "
        "many topics: danube_journal_sync_seconds_count counts syncs.",
    ),
    "flush_latency_ms": _topic(
        "wal_flush_latency_ms",
        "summary",
        f"Milliseconds from a batch being closed until it was durable, {LATELY}; "
        "danube_journal_sync_seconds tells of the syncs alone.",
    ),
    "validations": _topic(
        "schema_validation_total",
        "counter",
        "Messages held against the topic's schema, by its policy: warn or enforce.",
        "policy",
    ),
    "validation_failures": _topic(
        "schema_validation_failures_total",
        "counter",
        "Messages that were not what the topic's schema says, accepted (warn) or refused "
        "(enforce): missing_schema_id, subject_mismatch, unknown_schema, payload_invalid.",
        "reason",
    ),
    "active_producers": _topic("topic_active_producers", "gauge", "Producers heard of lately."),
    "active_consumers": _topic(
        "topic_active_consumers", "gauge", "Consumers that can take messages now."
    ),
    "active_subscriptions": _topic("topic_active_subscriptions", "gauge", "Subscriptions."),
}

SUBSCRIPTION_METRICS: Mapping[str, Metric] = {
    "messages_out": _subscription(
        "consumer_messages_out_total", "counter", "Messages sent to consumers, repeats included."
    ),
    "bytes_out": _subscription(
        "consumer_bytes_out_total", "counter", "Payload bytes of those messages."
    ),
    "nacks": _subscription("subscription_nack_total", "counter", "Messages consumers refused."),
    "redeliveries": _subscription(
        "subscription_redelivery_total", "counter", "Messages delivered again."
    ),
    "ack_timeouts": _subscription(
        "subscription_ack_timeout_total", "counter", "Messages not acknowledged in time."
    ),
    "discarded": _subscription(
        "subscription_discarded_total",
        "counter",
        "Messages dropped: on best-effort topics for want of a ready consumer, on reliable ones "
        "because no consumer's key filter matched. PyDanube's own.",
    ),
    "retry_exhausted": _subscription(
        "subscription_retry_exhausted_total",
        "counter",
        "Messages that used up their deliveries.",
        "poison_policy",
    ),
    "dead_letters": _subscription(
        "subscription_dlq_total",
        "counter",
        "Messages stored in a dead-letter topic.",
        "poison_policy",
    ),
    "active_consumers": _subscription(
        "subscription_active_consumers", "gauge", "Consumers that can take messages now."
    ),
    "lag": _subscription(
        "subscription_lag_messages", "gauge", "Durable messages above the cursor."
    ),
    "pending_redelivery": _subscription(
        "subscription_pending_redelivery", "gauge", "Messages that wait for their next delivery."
    ),
    "blocked": _subscription(
        "subscription_terminal_blocked", "gauge", "Exhausted messages that block."
    ),
    "stalled": _subscription(
        "subscription_stalled",
        "gauge",
        "1 while a subscription with consumers and messages gets nowhere: nothing is settled, or "
        "dead letters cannot be stored. PyDanube's own.",
    ),
    "delayed": _subscription(
        "subscription_delayed", "gauge", "Messages known to wait for their own time."
    ),
    "hold_lapsed": _subscription(
        "subscription_hold_lapsed",
        "gauge",
        "1 when a leased cursor was not advanced in time: it keeps no history back any more. "
        "PyDanube's own.",
    ),
    "expired": _subscription(
        "subscription_expired_total",
        "counter",
        "Messages that outlived their time and were settled without being delivered.",
    ),
}

JOURNAL_METRICS: Mapping[str, Metric] = {
    "rotations": _topic(
        "wal_file_rotate_total",
        "counter",
        f'Journal files begun, by reason. One journal serves all topics: topic="{JOURNAL}".',
        "reason",
    ),
    "deletions": _topic(
        "wal_delete_total", "counter", "Journal files deleted, by reason.", "reason"
    ),
    "sync_seconds": Metric(
        "danube_journal_sync_seconds",
        "histogram",
        (),
        "Seconds from handing a group to the disk until it was synced. PyDanube's own.",
    ),
    "group_records": Metric(
        "danube_journal_group_records",
        "histogram",
        (),
        "Records made durable by one sync. PyDanube's own.",
    ),
    "bytes": Metric(
        "danube_journal_bytes_total", "counter", (), "Bytes written and synced. PyDanube's own."
    ),
    "unsynced_bytes": Metric(
        "danube_journal_unsynced_bytes",
        "gauge",
        (),
        "Bytes that wait for the next sync; publishing is refused at a limit. PyDanube's own.",
    ),
    "failed": Metric(
        "danube_journal_failed",
        "gauge",
        (),
        "1 after a failed write or sync: the broker accepts nothing until it is restarted. "
        "PyDanube's own.",
    ),
    "waiting": Metric(
        "danube_journal_waiting",
        "gauge",
        (),
        "1 while descriptors, memory or space are used up: messages are refused until there is "
        "room again. PyDanube's own.",
    ),
}


def _store(name: str, kind: Kind, help_text: str, *labels: str) -> Metric:
    return Metric(f"danube_{name}", kind, labels, help_text)


SEGMENT_METRICS: Mapping[str, Metric] = {
    "uploads": _store(
        "cloud_upload_objects_total", "counter", "Segments written to the store.", "provider"
    ),
    "upload_bytes": _store(
        "cloud_upload_bytes_total", "counter", "Bytes of those segments.", "provider"
    ),
    "upload_latency_ms": _store(
        "cloud_upload_latency_ms",
        "summary",
        f"Milliseconds a segment took to be written, repeats included, {LATELY}.",
    ),
    "upload_failures": _store(
        "cloud_upload_failures_total",
        "counter",
        "Attempts to write a segment that failed, by reason; they are repeated. PyDanube's own.",
        "provider",
        "reason",
    ),
    "lists": _store("cloud_list_total", "counter", "Listings of the store."),
    "list_latency_ms": _store(
        "cloud_list_latency_ms", "summary", f"Milliseconds a listing took, {LATELY}."
    ),
    "segments_read": _store(
        "durable_history_segments_read_total",
        "counter",
        "Segments opened to be read.",
        "topic",
        "provider",
    ),
    "read_bytes": _store(
        "durable_history_read_bytes_total",
        "counter",
        "Bytes fetched from the store.",
        "topic",
        "provider",
    ),
    "reader_errors": _store(
        "durable_history_reader_errors_total",
        "counter",
        "Segments that could not be read, by reason: crc, decode or missing.",
        "provider",
        "reason",
    ),
    "handoffs": _store(
        "handoff_durable_history_to_hot_total",
        "counter",
        "Reads that went on from segments to the journal.",
        "topic",
    ),
    "unexported_bytes": _store(
        "segment_unexported_bytes",
        "gauge",
        "Bytes in the journal and in no segment. PyDanube's own.",
    ),
    "topics_failing": _store(
        "segment_export_failing_topics",
        "gauge",
        "Topics whose last export failed; their messages stay in the journal, and /readyz names "
        "them. PyDanube's own.",
    ),
    "exports_failed": _store(
        "segment_export_failures_total",
        "counter",
        "Exports that came to nothing; each is tried again later. PyDanube's own.",
    ),
    "expired": _store(
        "segment_expired_total", "counter", "Segments removed by retention. PyDanube's own."
    ),
    "joined": _store(
        "segment_joined_total",
        "counter",
        "Small segments that were joined into larger ones. PyDanube's own.",
    ),
}

MIRROR_METRICS: Mapping[str, Metric] = {
    "lag_records": _store(
        "mirror_lag_records",
        "gauge",
        "Journal records of topics served here that a mirror, named by its broker's number, does "
        "not have yet. PyDanube's own.",
        "mirror",
    ),
    "waiting_records": _store(
        "mirror_waiting_records",
        "gauge",
        "Batches and acks that wait for a majority of journals. PyDanube's own.",
    ),
    "waiting_bytes": _store(
        "mirror_waiting_bytes",
        "gauge",
        "Their bytes; publishing is refused at mirrors.unacknowledged_bytes_max. PyDanube's own.",
    ),
    "backlog_bytes": _store(
        "mirror_backlog_bytes",
        "gauge",
        "Memory that holds acknowledged records for slow mirrors. PyDanube's own.",
    ),
    "short_topics": _store(
        "mirror_short_topics",
        "gauge",
        "Topics served here that have fewer copies than they shall have. PyDanube's own.",
    ),
    "set_changes": _store(
        "mirror_set_changes_total",
        "counter",
        "Sets of copies that took the place of others: replaced, grown or shrunk. PyDanube's own.",
        "change",
    ),
    "catch_ups": _store(
        "mirror_catch_ups_total",
        "counter",
        "Times a mirror was brought up to date from the journal, new ones included. PyDanube's "
        "own.",
        "mirror",
    ),
    "catch_up_bytes": _store(
        "mirror_catch_up_bytes_total", "counter", "Bytes sent for that. PyDanube's own.", "mirror"
    ),
    "setbacks": _store(
        "mirror_setbacks_total",
        "counter",
        "Times a mirror that followed lacked something: it had restarted, or lost its copy. "
        "PyDanube's own.",
        "mirror",
    ),
}

PROCESS_METRICS: Mapping[str, Metric] = {
    "cpu_seconds": Metric("process_cpu_seconds_total", "counter", (), "User and system CPU time."),
    "resident_bytes": Metric("process_resident_memory_bytes", "gauge", (), "Memory held in RAM."),
    "virtual_bytes": Metric("process_virtual_memory_bytes", "gauge", (), "Address space."),
    "open_files": Metric("process_open_fds", "gauge", (), "Open file descriptors."),
    "open_files_max": Metric(
        "process_max_fds", "gauge", (), "How many descriptors it may have open."
    ),
    "start_seconds": Metric(
        "process_start_time_seconds", "gauge", (), "Start of the process, seconds since 1970."
    ),
}

METRICS: tuple[Metric, ...] = (
    *BROKER_METRICS.values(),
    *TOPIC_METRICS.values(),
    *SUBSCRIPTION_METRICS.values(),
    *JOURNAL_METRICS.values(),
    *SEGMENT_METRICS.values(),
    *MIRROR_METRICS.values(),
    *PROCESS_METRICS.values(),
)
