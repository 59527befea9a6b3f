"""Runs the flows of a pipeline side by side, until they end or somebody asks them to."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pydanube.errors import NotFound, NotSupported
from pydanube.pipelines.announcing import PIPELINES_TOPIC, Announcer
from pydanube.pipelines.batches import BatchDone, BatchWork
from pydanube.pipelines.checks import Beginning
from pydanube.pipelines.definitions import PipelineDefinition, SparkSettings, Trigger
from pydanube.pipelines.errors import FlowFailed
from pydanube.pipelines.flow_run import FlowRun
from pydanube.pipelines.frames import PythonStep
from pydanube.pipelines.graph import Flow, flows_of
from pydanube.pipelines.reports import FlowStatus
from pydanube.runtime.blocking import environment, pause
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.process import StopFlag
from pydanube.spark.brokers import Brokers
from pydanube.spark.options import DEFAULT_URL, URL_VARIABLE, Access, write_options
from pydanube.spark.session_settings import is_connect_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TURN_SECONDS = 0.1
_LOCAL = re.compile(r"local(?:\[(\*|\d+)\])?")
ANNOUNCE_TIMEOUT_MS = 5_000

AroundBatch = Callable[[BatchWork, "DataFrame", int], BatchDone]


def look_for_brokers(definition: PipelineDefinition) -> None:
    """Raise what is wrong with the address of the brokers, ahead of Spark, which takes its time.

    Nobody is asked where Spark Connect is used: it is the server that must reach the brokers.
    """
    if is_connect_url(definition.spark.master) or not definition.needs_brokers:
        return
    Brokers(access_of(definition)).look_for(
        "Say where they are with danube.url in the file or url of Pipeline(), or with "
        f"{URL_VARIABLE}"
    )


def start_spark(name: str, settings: SparkSettings) -> "SparkSession":
    """Start Spark as a pipeline wants it, or return the session that runs."""
    from pydanube.spark import session

    _silence_query_loggers()
    master = master_of(settings.master)
    conf: dict[str, str | int | bool] = {
        # The order of rows in a task must not depend on what a run happened to measure.
        "spark.sql.adaptive.enabled": False,
        **{k: str(v) if isinstance(v, float) else v for k, v in settings.conf.items()},
    }
    if is_connect_url(master):
        if settings.packages:
            raise NotSupported(
                f"spark.packages: those of {master} are given to the server when it starts: danube "
                f"spark server --conf spark.jars.packages={','.join(settings.packages)}"
            )
        connected = session(name, master, row_bytes_max=settings.row_bytes_max, **conf)
        if settings.py_files:
            connected.addArtifacts(*settings.py_files, pyfile=True)
        return connected
    if settings.packages:
        conf["spark.jars.packages"] = ",".join(settings.packages)
    if settings.py_files:
        conf["spark.submit.pyFiles"] = ",".join(settings.py_files)
    conf.setdefault("spark.log.level", "ERROR")
    conf.setdefault("spark.ui.showConsoleProgress", False)
    return session(name, master, row_bytes_max=settings.row_bytes_max, **conf)


def _silence_query_loggers() -> None:
    """Keep PySpark from printing what it raises, as JSON with two traces: it is told once."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel("CRITICAL")


def master_of(master: str) -> str:
    """Return the master that is used: tasks of local ones get four tries instead of one."""
    local = _LOCAL.fullmatch(master)
    return f"local[{local[1] or 1},4]" if local is not None else master


class PipelineRun:
    """The flows of a pipeline that run, or some of them."""

    def __init__(
        self,
        definition: PipelineDefinition,
        spark: "SparkSession",
        *,
        flow: str | None = None,
        available_now: bool = False,
        beginning: Beginning | None = None,
        functions: Mapping[str, PythonStep] | None = None,
        clock: Clock | None = None,
        around_batch: AroundBatch | None = None,
    ) -> None:
        self.name = definition.pipeline
        self._announcer = Announcer(access_of(definition), clock or SystemClock())
        self._runs = [
            FlowRun(
                definition,
                each,
                spark,
                clock or SystemClock(),
                functions=functions,
                beginning=beginning,
                trigger=Trigger(available_now=True) if available_now else None,
                around_batch=around_batch,
            )
            for each in chosen_flows(definition, flow)
        ]

    def start(self) -> None:
        """Start every flow; if one is refused, none is left running."""
        started: list[FlowRun] = []
        try:
            for run in self._runs:
                run.start()
                started.append(run)
        except BaseException:
            for run in started:
                run.stop(now=True)
            self._finish(started)
            raise

    def turn(self) -> bool:
        """Look after every flow; return whether one still runs."""
        for run in self._runs:
            run.turn()
        self._announcer.tell(self.statuses())
        return any(not run.has_ended for run in self._runs)

    def stop(self, *, now: bool = False) -> None:
        """Ask every flow to stop."""
        for run in self._runs:
            run.stop(now=now)

    def run(
        self,
        stop: StopFlag | None = None,
        watch: Callable[[Sequence[FlowStatus]], None] | None = None,
    ) -> list[FlowStatus]:
        """Start, and look after the flows until all have ended; return how they did."""
        self.start()
        asked = False
        while self.turn():
            if stop is not None and stop.is_set and not asked:
                asked = True
                self.stop()
            if watch is not None:
                watch(self.statuses())
            pause(TURN_SECONDS)
        return self.statuses()

    def statuses(self) -> list[FlowStatus]:
        """Return how the flows are doing."""
        found = []
        for run in self._runs:
            found.append(run.status)
            if run.side is not None:
                found.append(run.side.status)
        return found

    def _finish(self, runs: Sequence[FlowRun]) -> None:
        while any(not run.has_ended for run in runs):
            for run in runs:
                run.turn()
            pause(TURN_SECONDS)


def access_of(definition: PipelineDefinition) -> Access:
    """Return how the brokers are reached for small things that may fail."""
    options = {
        **definition.danube.options(),
        "topic": PIPELINES_TOPIC,
        "requestTimeoutMs": str(ANNOUNCE_TIMEOUT_MS),
    }
    url = environment(URL_VARIABLE) or DEFAULT_URL
    return write_options(options, streaming=False, default_url=url).access


def chosen_flows(definition: PipelineDefinition, flow: str | None) -> Sequence[Flow]:
    """Return all flows, or the one of that name."""
    found = [each for each in flows_of(definition) if flow in (None, each.sink.name)]
    if not found:
        names = ", ".join(sink.name for sink in definition.sinks)
        raise NotFound(f"{definition.pipeline} has no flow {flow}; it has {names}")
    return found


def check_outcome(statuses: Sequence[FlowStatus]) -> None:
    """Raise what ended a flow, if something did."""
    failed = [each for each in statuses if each.state == "FAILED"]
    if failed:
        raise FlowFailed("\n".join(each.error or each.flow for each in failed))
