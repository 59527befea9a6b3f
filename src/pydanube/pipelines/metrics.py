"""The metrics of running flows, served on loopback as Prometheus reads them."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Self

from pydanube.observability.exposition import Exposition, Value
from pydanube.observability.http import OperatorPages
from pydanube.observability.metric_table import Kind, Metric
from pydanube.pipelines.reports import FlowStatus
from pydanube.runtime.loop_thread import LoopThread
from pydanube.runtime.system_network import SystemNetwork

_LABELS = ("pipeline", "flow")
_STATES = {"STOPPED": 0, "DONE": 0, "FAILED": 2}


def _metric(name: str, kind: Kind, text: str, *labels: str) -> Metric:
    return Metric(f"danube_pipeline_{name}", kind, (*_LABELS, *labels), text)


PIPELINE_METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "rows_in": _metric("rows_in_total", "counter", "Rows that were read."),
        "rows_out": _metric("rows_out_total", "counter", "Rows that the sink took."),
        "dead_letters": _metric("dead_letters_total", "counter", "Rows for the dead letters."),
        "expectation_failures": _metric(
            "expectation_failures_total",
            "counter",
            "Rows that broke an expectation.",
            "expectation",
            "action",
        ),
        "batch_duration": _metric("batch_duration_seconds", "summary", "How long batches took."),
        "lag": _metric("lag_messages", "gauge", "Messages that the last batch did not reach."),
        "lag_seconds": _metric("lag_seconds", "gauge", "How long they will take, at this rate."),
        "restarts": _metric("restarts_total", "counter", "Starts after a failure."),
        "state": _metric("state", "gauge", "0 stopped, 1 running, 2 failed."),
        "last_batch": _metric(
            "last_batch_timestamp_seconds", "gauge", "When the last batch was done."
        ),
    }
)


def metrics_text(statuses: Sequence[FlowStatus]) -> bytes:
    """Return the metrics of flows in Prometheus' text format."""
    exposition = Exposition(None)
    for name, metric in PIPELINE_METRICS.items():
        exposition.add(
            metric,
            [
                (exposition.labels(_LABELS, (each.pipeline, each.flow)), _value(each, name))
                for each in statuses
            ],
        )
    return exposition.text()


def _value(status: FlowStatus, name: str) -> Value:
    match name:
        case "expectation_failures":
            counts = status.failed_expectations
            return {tuple(key.split("/", 1)): count for key, count in counts.items()}
        case "batch_duration":
            return round(status.batch_seconds, 3), status.batches
        case "state":
            return _STATES.get(status.state, 1)
        case "last_batch":
            return status.at_ms / 1000
        case _:
            found = getattr(status, name)
            assert isinstance(found, int | float), f"{name} is no number"
            return found


class MetricsPage:
    """Serves `/metrics`, `/healthz` and `/readyz` on loopback between `with` and its end."""

    def __init__(self, port: int, statuses: Callable[[], Sequence[FlowStatus]]) -> None:
        self._wanted = port
        self._statuses = statuses
        self.port = 0

    def __enter__(self) -> Self:
        self._thread = LoopThread("pipeline metrics")
        self.port = self._thread.call(self._open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.call(self._network.stop())
        self._thread.stop()

    async def _open(self) -> int:
        self._network = SystemNetwork()
        pages = OperatorPages(
            metrics=self._text, unhealthy=self._complaint, unready=self._complaint
        )
        listener = await self._network.listen("127.0.0.1", self._wanted, pages.serve)
        return listener.port

    async def _text(self) -> bytes:
        return metrics_text(self._statuses())

    def _complaint(self) -> str | None:
        failed = [each.flow for each in self._statuses() if each.state == "FAILED"]
        return f"failed: {', '.join(failed)}" if failed else None
