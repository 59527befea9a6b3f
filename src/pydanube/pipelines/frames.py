"""Flows as Spark's frames: sources followed or looked up, steps applied, state noticed.

Steps are functions of frames, so they are applied to streams, to the batches of a stream, and to
plain frames in tests, by the same code.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, TypeAlias

from pydanube.errors import DanubeError, InvalidRequest
from pydanube.pipelines.definitions import Danube, Dedupe, Scalar, Source, State, Step, Watermark
from pydanube.pipelines.errors import StepFailed
from pydanube.pipelines.graph import Flow, chance_in, lengthened, step_inputs
from pydanube.pipelines.spark_errors import words_of
from pydanube.spark.amounts import read_instant_ms
from pydanube.spark.connect import is_connected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

PythonStep: TypeAlias = "Callable[..., DataFrame]"
Frames: TypeAlias = "dict[str, DataFrame]"

# Spark marks what belongs to a stream with a tilde.
_STATEFUL = re.compile(
    r"^[\s:+\-]*~(Aggregate|Deduplicate\w*|Distinct|FlatMapGroups\w*|TransformWithState\w*|"
    r"Sort|GlobalLimit|LocalLimit|Window)\b",
    re.MULTILINE,
)
_JOIN = re.compile(r"^[\s:+\-]*~Join\b", re.MULTILINE)
_STREAM = re.compile(r"^[\s:+\-]*~?StreamingRelation", re.MULTILINE)
_SHUFFLES = re.compile(
    r"^[\s:+\-]*~?(Aggregate|Deduplicate|Join|Repartition|Sort|"
    r"FlatMapGroups|TransformWithState)",
    re.MULTILINE,
)


_ANALYSED = "== Analyzed Logical Plan =="
_PLACE = ("topic", "partition", "offset")
_NUMBER = "__danube_number"
_TIME_MODES = {"none": "None", "processing": "ProcessingTime", "event": "EventTime"}


class Shape:
    """What compiling a flow has shown: its streaming frames, and which steps keep state."""

    def __init__(self) -> None:
        self.frames: Frames = {}
        self.inputs: dict[str, tuple[str, ...]] = {}
        self.stateful: set[str] = set()
        self.shuffled = False
        self.chance: str | None = None
        """A function in the plan that another run would answer otherwise."""


class FlowFrames:
    """Builds the frames of one flow."""

    def __init__(
        self,
        flow: Flow,
        danube: Danube,
        parameters: Mapping[str, Scalar],
        functions: Mapping[str, PythonStep] | None = None,
    ) -> None:
        self.flow = flow
        self._danube = danube
        self._parameters = dict(parameters)
        self.functions = functions or {}

    @property
    def danube_options(self) -> dict[str, str]:
        """Return how brokers are reached, as options of the data source."""
        return self._danube.options()

    def subscription_of(self, name: str) -> str:
        """Return the cursor that shows a source's progress at the broker."""
        given = self.flow.sources[name].subscription
        return given or f"{self.flow.pipeline}.{self.flow.sink.name}.{name}"

    def options_of(self, name: str, start: Mapping[str, int] | None = None) -> dict[str, str]:
        """Return a followed source as options of the data source."""
        source = self.flow.sources[name]
        options = {
            **self._danube.options(),
            **source.selection,
            **_start_options(source.start),
            **({"decode": source.decode} if source.decode != "raw" else {}),
            "subscription": self.subscription_of(name),
            **{key: _text(value) for key, value in source.options.items()},
        }
        if start is not None:
            options.pop("startingTimestamp", None)
            options["startingOffsets"] = json.dumps(start)
        return options

    def follow(
        self,
        spark: "SparkSession",
        starts: Mapping[str, Mapping[str, int]],
        statics: Mapping[str, "DataFrame"],
    ) -> Shape:
        """Return the flow as streaming frames; what Spark refuses names the step."""
        sources: Frames = {}
        for name, source in self.flow.sources.items():
            if source.mode == "stream":
                options = self.options_of(name, starts.get(name))
                sources[name] = spark.readStream.format("danube").options(**options).load()
            else:
                sources[name] = statics[name]
        return self.shape(spark, sources)

    def shape(self, spark: "SparkSession", sources: Mapping[str, "DataFrame"]) -> Shape:
        """Apply all steps, and note what each of them does."""
        shape = Shape()
        shape.frames = dict(sources)
        marks: dict[str, tuple[Watermark, ...]] = {
            name: (lengthened(source.watermark, self.flow.steps),) if source.watermark else ()
            for name, source in self.flow.sources.items()
        }
        for name in sources:
            shape.frames[name], marks[name] = _watermarked(shape.frames[name], marks[name])
        plans = {name: _plan(frame) for name, frame in sources.items()}
        for step in self.flow.steps:
            inputs = step_inputs(step, list(shape.frames))
            frame = self.apply(spark, step, shape.frames)
            waiting = tuple(dict.fromkeys(mark for each in inputs for mark in marks[each]))
            shape.frames[step.name], marks[step.name] = _watermarked(frame, waiting)
            shape.inputs[step.name] = inputs
            plans[step.name] = _plan(frame)
            if _keeps_state(plans[step.name], [plans[each] for each in inputs]):
                shape.stateful.add(step.name)
        last = plans[self.flow.sink.from_]
        shape.shuffled = _SHUFFLES.search(last) is not None
        shape.chance = chance_in(re.sub(r"\s", " ", last))
        return shape

    def apply(
        self, spark: "SparkSession", step: Step, frames: Mapping[str, "DataFrame"]
    ) -> "DataFrame":
        """Return what a step makes of the frames before it. Expectations drop what they must."""
        from pyspark.errors import PySparkException

        try:
            return self._apply(spark, step, frames)
        except PySparkException as error:
            where = f"{self.flow.name}, step {step.name}"
            raise InvalidRequest(f"{where}: {words_of(error)}") from error

    def _apply(
        self, spark: "SparkSession", step: Step, frames: Mapping[str, "DataFrame"]
    ) -> "DataFrame":
        if step.sql is not None:
            for name in step_inputs(step, list(frames)):
                frames[name].createOrReplaceTempView(name)
            return spark.sql(step.sql.rstrip().rstrip(";"))
        assert step.from_ is not None, "it was checked"
        frame = frames[step.from_]
        if step.python is not None:
            return self._call(step, frame)
        if step.dedupe is not None:
            if step.dedupe.time not in frame.columns:
                raise InvalidRequest(
                    f"{self.flow.name}, step {step.name}: dedupe.time names {step.dedupe.time}, "
                    f"and the columns are {', '.join(frame.columns)}"
                )
            return _deduped(frame, step.dedupe)
        if step.state is not None:
            return self._remember(step, step.state, frame)
        from pydanube.pipelines.judging import kept

        return kept(frame, step.expect or ())

    def _remember(self, step: Step, state: State, frame: "DataFrame") -> "DataFrame":
        processor, output = find_processor(state.processor)
        missing = [name for name in state.keys if name not in frame.columns]
        if missing:
            raise InvalidRequest(
                f"{self.flow.name}, step {step.name}: state.keys names {', '.join(missing)}, and "
                f"the columns are {', '.join(frame.columns)}"
            )
        return frame.groupBy(*state.keys).transformWithStateInPandas(
            statefulProcessor=processor,
            outputStructType=output,
            outputMode="Update" if self.flow.sink.mode == "upsert" else "Append",
            timeMode=_TIME_MODES[state.time],
        )

    def _call(self, step: Step, frame: "DataFrame") -> "DataFrame":
        assert step.python is not None
        function = self.functions.get(step.name) or find_function(step.python)
        taken = function.__code__.co_argcount if hasattr(function, "__code__") else 2
        from pyspark.errors import PySparkException
        from pyspark.sql import DataFrame

        try:
            found = function(frame) if taken == 1 else function(frame, self._parameters)
        except (PySparkException, DanubeError):
            raise
        except Exception as error:  # It is the user's code: it may raise anything.
            raise StepFailed(
                f"{self.flow.name}, step {step.name}: {step.python} failed{_line_in_step(error)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(found, DataFrame):
            raise InvalidRequest(
                f"{self.flow.name}, step {step.name}: {step.python} returned "
                f"{type(found).__name__}; it must return a frame"
            )
        return found


def _line_in_step(error: Exception) -> str:
    """Return where in a step's own function an error came up, if it was called at all."""
    called = extract_tb(error.__traceback__)[1:]
    return f" ({called[0].filename}:{called[0].lineno})" if called else ""


def find_processor(reference: str) -> "tuple[StatefulProcessor, str]":
    """Return an instance of the class that `module:Class` names, and the columns it makes."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    found: Any = find_function(reference)
    output = getattr(found, "output", None)
    if not (isinstance(found, type) and issubclass(found, StatefulProcessor)):
        raise InvalidRequest(
            f"{reference} is no class that keeps state; derive it from "
            "pyspark.sql.streaming.StatefulProcessor"
        )
    if not isinstance(output, str):
        raise InvalidRequest(
            f'{reference} does not name its columns; add output = "user string, n bigint"'
        )
    return found(), output


def find_function(reference: str) -> PythonStep:
    """Return the function that `module:function` names."""
    module, _, name = reference.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # The user's module runs here: it may raise anything.
        absent = isinstance(error, ModuleNotFoundError)
        hint = "; is it beside the file, or in PYTHONPATH?" if absent else ""
        raise InvalidRequest(
            f"{reference} cannot be loaded: {type(error).__name__}: {error}{hint}"
        ) from error
    if not callable(found):
        raise InvalidRequest(f"{reference} is no function")
    return found  # type: ignore[no-any-return]  # A callable; what it returns is checked.


def look_up(spark: "SparkSession", source: Source, version: int | None) -> "DataFrame":
    """Return a static source; a Delta table at one version."""
    assert source.path is not None, "it was checked"
    if source.format == "parquet":
        return spark.read.parquet(source.path)
    from deltalake import DeltaTable

    table = DeltaTable(source.path, version=version)
    return spark.createDataFrame(table.to_pyarrow_table())


def version_of(source: Source) -> int | None:
    """Return the newest version of a static source; None where there are none."""
    if source.format != "delta":
        return None
    from deltalake import DeltaTable

    assert source.path is not None, "it was checked"
    return int(DeltaTable(source.path).version())


def cut_of(flow: Flow, shape: Shape) -> str:
    """Return the frame that leaves Spark's streaming part: batches begin there.

    It is the earliest one behind everything that keeps state, such that what follows needs no
    other stream.
    """
    order = [*flow.streams, *(step.name for step in flow.steps)]
    static = {name for name, source in flow.sources.items() if source.mode == "static"}
    after = max((order.index(name) for name in shape.stateful), default=0)
    for position in range(after, len(order)):
        later = order[position + 1 :]
        allowed = {order[position], *later, *static} - set(flow.streams[1:])
        if order[position] in flow.streams:
            allowed |= {order[position]}
            later = [name for name in later if name not in flow.streams]
            if len(flow.streams) > 1:
                continue
        if all(set(shape.inputs[name]) <= allowed for name in later):
            return order[position]
    return flow.sink.from_


def steps_after(flow: Flow, cut: str) -> tuple[Step, ...]:
    """Return the steps that are applied to batches."""
    names = [step.name for step in flow.steps]
    return flow.steps[names.index(cut) + 1 :] if cut in names else flow.steps


def _keeps_state(plan: str, inputs: Iterable[str]) -> bool:
    before = list(inputs)
    grown = len(_STATEFUL.findall(plan)) > sum(len(_STATEFUL.findall(each)) for each in before)
    joins = len(_JOIN.findall(plan)) > sum(len(_JOIN.findall(each)) for each in before)
    return grown or (joins and len(_STREAM.findall(plan)) > 1)


def _plan(frame: "DataFrame") -> str:
    if not is_connected(frame):
        return str(frame._jdf.queryExecution().analyzed().toString())
    # Over Spark Connect there is the text for people alone: a title, the columns, the plan.
    explained: str = frame._explain_string(extended=True)  # type: ignore[operator]
    analysed = explained.partition(_ANALYSED)[2].partition("\n== ")[0]
    return analysed.lstrip("\n").partition("\n")[2]


def _deduped(frame: "DataFrame", dedupe: Dedupe) -> "DataFrame":
    if frame.isStreaming:
        return frame.dropDuplicatesWithinWatermark(list(dedupe.keys))
    # There are no watermarks in plain frames: of everything there is, the first row of each key.
    from pyspark.sql import Window
    from pyspark.sql.functions import col, row_number

    order = [name for name in (dedupe.time, *_PLACE) if name in frame.columns]
    number = row_number().over(Window.partitionBy(*dedupe.keys).orderBy(*order))
    return frame.withColumn(_NUMBER, number).where(col(_NUMBER) == 1).drop(_NUMBER)


def _watermarked(
    frame: "DataFrame", waiting: tuple[Watermark, ...]
) -> tuple["DataFrame", tuple[Watermark, ...]]:
    """Set the watermarks whose column is here; the others wait for a step that makes it."""
    left = []
    for mark in waiting:
        column = mark.column.rpartition(".")[2]
        if column in frame.columns and ("." not in mark.column or "value" not in frame.columns):
            frame = frame.withWatermark(column, mark.delay)
        else:
            left.append(mark)
    return frame, tuple(left)


def _start_options(start: Scalar) -> dict[str, str]:
    text = str(start)
    if text in ("earliest", "latest", "committed"):
        return {"startingOffsets": text}
    read_instant_ms(text, 0)
    return {"startingTimestamp": text}


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
