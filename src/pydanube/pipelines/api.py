"""Pipelines written in Python. They become the same definition as a YAML file does."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.pipelines.checks import Beginning
from pydanube.pipelines.definitions import (
    Danube,
    Otherwise,
    PipelineDefinition,
    SparkSettings,
)
from pydanube.pipelines.documents import read_definition
from pydanube.pipelines.frames import FlowFrames, PythonStep
from pydanube.pipelines.graph import check_graph, flows_of
from pydanube.pipelines.places import Places
from pydanube.pipelines.planning import plan_pipeline
from pydanube.pipelines.reports import FlowStatus, PipelinePlan
from pydanube.pipelines.runner import PipelineRun, check_outcome, look_for_brokers, start_spark
from pydanube.runtime.blocking import environment_variables, read_file
from pydanube.spark.connect import is_connected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Part(Struct, frozen=True):
    """A source or step of a pipeline, to be named by later ones."""

    name: str


class Pipeline:
    """Sources, steps and sinks. `run` starts Spark unless `spark` is given."""

    def __init__(
        self,
        name: str,
        *,
        checkpoints: str,
        url: str | None = None,
        danube: Danube | None = None,
        dead_letter: str | None = None,
        spark: "SparkSession | None" = None,
        settings: SparkSettings | None = None,
        **keys: object,
    ) -> None:
        self._document: dict[str, Any] = {
            "pipeline": name,
            "checkpoints": checkpoints,
            "danube": danube or Danube(url=url),
            "spark": settings or SparkSettings(),
            "sources": {},
            "steps": [],
            "sinks": [],
            **keys,
        }
        if dead_letter is not None:
            kind = "path" if "://" in dead_letter else "topic"
            self._document["dead_letter"] = {kind: dead_letter}
        self._functions: dict[str, PythonStep] = {}
        self._spark = spark
        self._places = Places(None)

    @classmethod
    def load(
        cls, path: str, spark: "SparkSession | None" = None, **parameters: str | float | bool
    ) -> Self:
        """Read a pipeline from a YAML file; InvalidPipeline names every mistake with its line."""
        text = read_file(path).decode()
        definition, places = read_definition(text, path, environment_variables(), parameters)
        check_graph(definition, places)
        loaded = cls(definition.pipeline, checkpoints=definition.checkpoints, spark=spark)
        loaded._document = msgspec.to_builtins(definition)
        loaded._places = places
        return loaded

    def source(self, name: str, **keys: object) -> Part:
        """Add a source, with the keys that a file has: topic, start, watermark …."""
        self._document["sources"][name] = keys
        return Part(name)

    def sql(self, name: str, text: str) -> Part:
        """Add a step in SQL, over the names of sources and earlier steps."""
        self._document["steps"].append({"name": name, "sql": text})
        return Part(name)

    def dedupe(self, name: str, source: Part, keys: Sequence[str], within: str, time: str) -> Part:
        """Add a step that keeps the first row of each key."""
        verb = {"keys": list(keys), "within": within, "time": time}
        self._document["steps"].append({"name": name, "from": source.name, "dedupe": verb})
        return Part(name)

    def expect(
        self, name: str, source: Part, checks: Mapping[str, str], otherwise: Otherwise = "fail"
    ) -> Part:
        """Add a step that judges rows: `checks` are conditions in SQL by their names."""
        verb = [
            {"name": each, "check": check, "otherwise": otherwise} for each, check in checks.items()
        ]
        self._document["steps"].append({"name": name, "from": source.name, "expect": verb})
        return Part(name)

    def step(
        self,
        source: Part,
        *,
        expect: Mapping[str, str] | None = None,
        otherwise: Otherwise = "fail",
    ) -> "Callable[[Callable[..., DataFrame]], Part]":
        """Make a step of a function: frame in, frame out; `expect` judges what it returns."""

        def add(function: "Callable[..., DataFrame]") -> Part:
            name = function.__name__
            inner = f"{name}_all" if expect else name
            reference = f"{function.__module__}:{function.__qualname__}"
            self._document["steps"].append(
                {
                    "name": inner,
                    "from": source.name,
                    "python": reference.replace("<locals>.", "").replace("<lambda>", "f"),
                }
            )
            self._functions[inner] = function
            return self.expect(name, Part(inner), expect, otherwise) if expect else Part(inner)

        return add

    def sink(self, name: str, source: Part, **keys: object) -> None:
        """Add a sink: `topic=…`, `delta=…`, `iceberg=…`, `parquet=…`, or format and its keys."""
        for each, named in (("delta", "path"), ("parquet", "path"), ("iceberg", "table")):
            if each in keys:
                keys = {**keys, "format": each, named: keys[each]}
                del keys[each]
        if "topic" in keys:
            keys = {"format": "danube", **keys}
        self._document["sinks"].append({"name": name, "from": source.name, **keys})

    def definition(self) -> PipelineDefinition:
        """Return what was built; InvalidPipeline names every mistake."""
        try:
            found = msgspec.convert(msgspec.to_builtins(self._document), PipelineDefinition)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"pipeline {self._document['pipeline']}: {error}") from None
        check_graph(found, self._places)
        return found

    def plan(self) -> PipelinePlan:
        """Look at everything that a run would need, and change nothing."""
        definition = self.definition()
        return plan_pipeline(definition, self._session_with_brokers(definition), self._functions)

    def run(
        self,
        *,
        available_now: bool = False,
        flow: str | None = None,
        new_checkpoint: bool = False,
        from_sink: bool = False,
    ) -> list[FlowStatus]:
        """Run until all flows have ended; FlowFailed says what ended one that should not have."""
        definition = self.definition()
        run = PipelineRun(
            definition,
            self._session_with_brokers(definition),
            flow=flow,
            available_now=available_now,
            beginning=Beginning(new_checkpoint=new_checkpoint, from_sink=from_sink),
            functions=self._functions,
        )
        statuses = run.run()
        check_outcome(statuses)
        return statuses

    def test(
        self,
        frames: "Mapping[str, DataFrame | Sequence[Mapping[str, Any]]]",
        sink: str | None = None,
    ) -> list[dict[str, Any]]:
        """Run the steps of a sink on plain frames or rows, and return what the sink would get."""
        definition = self.definition()
        flow = next(f for f in flows_of(definition) if sink in (None, f.sink.name))
        spark = self._session(definition)
        missing = [name for name in flow.sources if name not in frames]
        if missing:
            raise InvalidRequest(f"give rows for the sources {', '.join(missing)}, too")
        from pyspark.sql import DataFrame, Row

        sources: dict[str, DataFrame] = {}
        for name in flow.sources:
            rows = frames[name]
            sources[name] = (
                rows
                if isinstance(rows, DataFrame)
                else spark.createDataFrame([Row(**row) for row in rows])
            )
        builder = FlowFrames(flow, definition.danube, definition.parameters, self._functions)
        shape = builder.shape(spark, sources)
        return [row.asDict() for row in shape.frames[flow.sink.from_].collect()]

    def _session_with_brokers(self, definition: PipelineDefinition) -> "SparkSession":
        if self._spark is None or not is_connected(self._spark):
            look_for_brokers(definition)
        return self._session(definition)

    def _session(self, definition: PipelineDefinition) -> "SparkSession":
        if self._spark is None:
            self._spark = start_spark(definition.pipeline, definition.spark)
        return self._spark
