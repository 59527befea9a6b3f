"""What running queries say about themselves: as metrics, and mirrored to a subscription.

A listener is added with `spark.streams.addListener(...)`. Spark calls it in a thread of its own,
and swallows what it raises.
"""

import json
from collections.abc import Mapping
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener
from typing_extensions import override

from pydanube.errors import InvalidRequest
from pydanube.observability.exposition import Exposition
from pydanube.observability.metric_table import Metric
from pydanube.spark.brokers import brokers_of
from pydanube.spark.options import read_options
from pydanube.spark.progress_reports import lag_of, offsets_of, total_of
from pydanube.spark.source.cursors import move_for_holder
from pydanube.spark.source.rows import Place

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

SPARK_METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "rows": Metric("danube_spark_rows_total", "counter", ("query",), "Rows that were read."),
        "batch_seconds": Metric(
            "danube_spark_batch_seconds", "summary", ("query",), "How long batches took."
        ),
        "lag": Metric(
            "danube_spark_lag_messages",
            "gauge",
            ("query", "topic"),
            "Messages of a topic that the last batch has not reached.",
        ),
        "failures": Metric(
            "danube_spark_failures_total", "counter", ("query",), "Ends of a query with an error."
        ),
    }
)
"""What `ProgressMetrics` serves, by where the values are."""

QUERIES_MAX = 1_000
"""Queries that are told apart; the counts of the longest silent one are forgotten beyond."""


class _Query:
    """Counts of one query."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.batch_seconds = 0.0
        self.failures = 0
        self.lag: dict[tuple[str, ...], int] = {}


class _Listener(StreamingQueryListener):
    """Does nothing about anything."""

    @override
    def onQueryStarted(self, event: "QueryStartedEvent") -> None:
        pass

    @override
    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        pass

    @override
    def onQueryIdle(self, event: "QueryIdleEvent") -> None:
        pass

    @override
    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:
        pass


class ProgressMetrics(_Listener):
    """Counts batches, rows and lag of all queries of a session; `text` is what Prometheus reads."""

    def __init__(self) -> None:
        self._queries: dict[str, _Query] = {}
        self._lock = Lock()

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        exposition = Exposition(None)
        with self._lock:
            for attribute, metric in SPARK_METRICS.items():
                exposition.add(
                    metric,
                    [
                        (exposition.labels(("query",), (name,)), _value(query, attribute))
                        for name, query in sorted(self._queries.items())
                    ],
                )
        return exposition.text()

    @override
    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        self.take(json.loads(event.progress.json))

    @override
    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:
        if event.exception is not None:
            with self._lock:
                self._query(str(event.id)).failures += 1

    def take(self, progress: Mapping[str, Any]) -> None:
        """Count one report of a query."""
        with self._lock:
            query = self._query(progress.get("name") or progress["id"])
            query.batches += 1
            query.rows += int(total_of(progress, "numInputRows"))
            query.batch_seconds += (progress.get("batchDuration") or 0) / 1000
            query.lag = lag_of(progress)

    def _query(self, name: str) -> _Query:
        query = self._queries.pop(name, None) or _Query()
        self._queries[name] = query  # The last to have spoken is the last to be forgotten.
        while len(self._queries) > QUERIES_MAX:
            del self._queries[next(iter(self._queries))]
        return query


class ProgressMirror(_Listener):
    """Moves a subscription as soon as a batch is done.

    The source itself hears of that one batch later, and of the last batch of an AvailableNow run
    only when the query starts again. Takes the options of the source; `topic`, `url` and
    `subscription` among them.
    """

    def __init__(self, **options: str) -> None:
        self._options = read_options(options, streaming=True, now_ms=0)
        if self._options.subscription is None:
            raise InvalidRequest("name the subscription to move with option subscription")

    @override
    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        subscription = self._options.subscription
        assert subscription is not None, "it was checked"
        for _, end, _ in offsets_of(json.loads(event.progress.json)):
            wanted = {
                topic: position
                for topic, position in end.items()
                if {topic, Place.of(topic).topic} & set(self._options.selection.names)
            }
            move_for_holder(brokers_of(self._options.access), subscription, wanted)


def _value(query: _Query, attribute: str) -> int | tuple[float, int] | dict[tuple[str, ...], int]:
    match attribute:
        case "batch_seconds":
            return round(query.batch_seconds, 3), query.batches
        case "rows":
            return query.rows
        case "failures":
            return query.failures
        case _:
            return query.lag
