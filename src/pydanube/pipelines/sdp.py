"""Pipelines as projects of Spark Declarative Pipelines: files to write, and what is refused. Pure.

That front end drains what there is and stops, has no expectations, no state of our own and no
sinks that commit from Python; it runs over Spark Connect. What it cannot do, or does wrong without
an error, is refused here.
"""

import re
import shlex
from collections.abc import Iterator, Mapping

import yaml
from msgspec import Struct

from pydanube.pipelines.definitions import PipelineDefinition, Sink, Source, Step
from pydanube.pipelines.errors import InvalidPipeline, Problem
from pydanube.pipelines.graph import QUOTED, flows_of, inputs_of, lengthened
from pydanube.pipelines.places import Places
from pydanube.pipelines.sinks.catalog import kind_of
from pydanube.spark.session_settings import (
    SESSION_SETTINGS,
    SETTINGS,
    is_connect_url,
    promised_rows,
)
from pydanube.spark.source.rows import COLUMNS

SPEC = "spark-pipeline.yml"
TRANSFORMATIONS = "transformations/pipeline.py"

_OF_SPARK = (
    "spark.sql.cache.",
    "spark.sql.catalogImplementation",
    "spark.sql.extensions",
    "spark.sql.globalTempDatabase",
    "spark.sql.hive.",
    "spark.sql.queryExecutionListeners",
    "spark.sql.streaming.streamingQueryListeners",
    "spark.sql.ui.",
    "spark.sql.warehouse.dir",
)
"""Settings of SQL that a session cannot change."""

_HEADER = '''\
"""Pipeline {name}, as declared for Spark Declarative Pipelines. Written by `danube pipeline
export-sdp`; write it anew instead of changing it.

Each run drains what there is and stops. `--full-refresh` sends old rows to the sinks again, under
a new query: whoever reads them must know rows by key.
"""

from pyspark import pipelines as dp

PARAMETERS = {parameters!r}
'''


class Project(Struct, frozen=True, kw_only=True):
    """What `export-sdp` writes."""

    files: Mapping[str, str]
    """Text by path below the directory."""
    command: str
    """What runs it."""


def export(definition: PipelineDefinition, directory: str, places: Places | None = None) -> Project:
    """Return a checked pipeline as a project in an absolute directory.

    InvalidPipeline names everything that cannot be carried over, with the remedy.
    """
    problems = list(_problems(definition, places or Places(None)))
    if problems:
        raise InvalidPipeline(problems)
    spec = yaml.safe_dump(_spec(definition), sort_keys=False)
    return Project(
        files={SPEC: spec, TRANSFORMATIONS: _module(definition)},
        command=shlex.join(
            ["spark-pipelines", "run", "--spec", f"{directory}/{SPEC}", *_flags(definition)]
        ),
    )


def _flags(definition: PipelineDefinition) -> list[str]:
    """Return where it runs, and the settings that Spark must have from its start."""
    master = definition.spark.master
    if is_connect_url(master):
        return ["--remote", master]
    # Tasks get no second try there: with a number of them it refuses to start.
    settings = {
        **{key: value for key, value in SETTINGS.items() if key not in SESSION_SETTINGS},
        **{
            key: _text(value)
            for key, value in definition.spark.conf.items()
            if not _is_of_session(key)
        },
    }
    if definition.spark.packages:
        settings["spark.jars.packages"] = ",".join(definition.spark.packages)
    flags = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    return ["--remote", re.sub(r",\d+\]$", "]", master), *flags]


def _spec(definition: PipelineDefinition) -> dict[str, object]:
    root = definition.checkpoints.removeprefix("file://").rstrip("/")
    given = definition.spark.conf
    return {
        "name": definition.pipeline,
        "storage": f"file://{root}/{definition.pipeline}/sdp",
        # Every flow sets them anew: what Spark has from its start would fail all of them.
        "configuration": {
            **SESSION_SETTINGS,
            "spark.sql.adaptive.enabled": "false",
            **promised_rows(definition.spark.row_bytes_max),
            **{key: _text(value) for key, value in given.items() if _is_of_session(key)},
        },
        "libraries": [{"glob": {"include": "transformations/**"}}],
    }


def _is_of_session(setting: str) -> bool:
    return setting.startswith("spark.sql.") and not setting.startswith(_OF_SPARK)


def _module(definition: PipelineDefinition) -> str:
    parts = [_HEADER.format(name=definition.pipeline, parameters=definition.parameters)]
    parts += [_source(name, source, definition) for name, source in definition.sources.items()]
    streams = _streams(definition)
    inputs = inputs_of(definition)
    for step in definition.steps:
        body = _step(step, inputs[step.name], streams)
        parts.append(_view(step.name, body))
    parts += [_sink(sink, definition) for sink in definition.sinks]
    return "\n\n".join(parts)


def _streams(definition: PipelineDefinition) -> set[str]:
    """Return the sources and steps that are streams."""
    found = {name for name, source in definition.sources.items() if source.mode == "stream"}
    for name, inputs in inputs_of(definition).items():
        if set(inputs) & found:
            found.add(name)
    return found


def _source(name: str, source: Source, definition: PipelineDefinition) -> str:
    if source.mode == "static":
        return _view(name, f"return spark.read.parquet({source.path!r})")
    options = {
        **definition.danube.options(),
        **source.selection,
        "startingOffsets": str(source.start),
        **_subscription(name, source, definition),
        **({"decode": source.decode} if source.decode != "raw" else {}),
        **{key: _text(value) for key, value in source.options.items()},
    }
    if source.start not in ("earliest", "latest", "committed"):
        options["startingTimestamp"] = options.pop("startingOffsets")
    frame = f'spark.readStream.format("danube").options(**{options!r}).load()'
    if source.watermark is not None:
        mark = lengthened(source.watermark, definition.steps)
        frame += f".withWatermark({mark.column!r}, {mark.delay!r})"
    return _view(name, f"return {frame}")


def _subscription(name: str, source: Source, definition: PipelineDefinition) -> dict[str, str]:
    """Return the cursor of a source; none if several flows read it, each at its own pace."""
    if source.subscription is not None:
        return {"subscription": source.subscription}
    readers = [flow for flow in flows_of(definition) if name in flow.sources]
    return {"subscription": f"{definition.pipeline}.sdp.{name}"} if len(readers) == 1 else {}


def _step(step: Step, inputs: tuple[str, ...], streams: set[str]) -> str:
    if step.sql is not None:
        text = _streaming(step.sql.rstrip().rstrip(";"), inputs, streams)
        return f"return spark.sql({text!r})"
    assert step.from_ is not None, "it was checked"
    read = f"spark.readStream.table({step.from_!r})"
    if step.python is not None:
        module, _, function = step.python.partition(":")
        return f"from {module} import {function}\n\n    return {function}({read}, PARAMETERS)"
    if step.dedupe is not None:
        return f"return {read}.dropDuplicatesWithinWatermark({list(step.dedupe.keys)!r})"
    for each in step.expect or ():
        read += f".where({f'coalesce({each.check}, false)'!r})"
    return f"return {read}"


def _sink(sink: Sink, definition: PipelineDefinition) -> str:
    options = kind_of(sink).declared(sink, definition.danube.options())
    assert options is not None, "it was checked"
    name = sink.name.replace("-", "_")
    return (
        f"dp.create_sink({name!r}, {sink.format!r}, {dict(options)!r})\n\n\n"
        f"@dp.append_flow(target={name!r}, name={f'into_{name}'!r})\n"
        f"def into_{name}():\n    return spark.readStream.table({sink.from_!r})\n"
    )


def _view(name: str, body: str) -> str:
    return f"@dp.temporary_view(name={name!r})\ndef {name}():\n    {body}\n"


def _streaming(sql: str, inputs: tuple[str, ...], streams: set[str]) -> str:
    """Return a statement that follows its streams: a plain name would be read as it is now."""
    parts, reached = [], 0
    for quoted in [*QUOTED.finditer(sql), None]:
        plain = sql[reached : quoted.start() if quoted is not None else len(sql)]
        for name in inputs:
            if name in streams:
                plain = _named(name).sub(r"\1 STREAM(\2)", plain)
        parts.append(plain)
        if quoted is not None:
            parts.append(quoted[0])
            reached = quoted.end()
    return "".join(parts)


def _named(name: str) -> re.Pattern[str]:
    return re.compile(rf"\b(FROM|JOIN)\s+({name})\b(?!\s*\.)", re.IGNORECASE)


def _problems(definition: PipelineDefinition, places: Places) -> Iterator[Problem]:
    for name, source in definition.sources.items():
        if source.format == "delta":
            yield places.problem(
                ("sources", name, "format"), "Spark reads no Delta without its jar; use parquet"
            )
        mark = source.watermark
        if mark is not None and mark.column not in COLUMNS:
            yield places.problem(
                ("sources", name, "watermark", "column"),
                f"{mark.column} is made by a later step; here it must be of the source, such as "
                "publish_time",
            )
    streams = _streams(definition)
    inputs = inputs_of(definition)
    for number, step in enumerate(definition.steps):
        for key, message in _step_problems(step, inputs[step.name], streams):
            yield places.problem(("steps", number, key), message)
    for number, sink in enumerate(definition.sinks):
        for key, message in _sink_problems(sink):
            yield places.problem(("sinks", number, key), message)
    master = definition.spark.master
    if not master.startswith(("local", "sc://")):
        yield places.problem(
            ("spark", "master"),
            f"it always goes through Connect, and refuses {master}; start a Connect server there "
            "and use sc://127.0.0.1:15002",
        )
    fixed = [key for key in definition.spark.conf if not _is_of_session(key)]
    if is_connect_url(master) and (fixed or definition.spark.packages):
        named = ", ".join([*fixed, *(["spark.jars.packages"] if definition.spark.packages else [])])
        yield places.problem(
            ("spark", "conf" if fixed else "packages"),
            f"the Spark Connect server has {named} from its start; give it there (danube spark "
            "server --conf), and leave it out here",
        )
    if "spark.master" in definition.spark.conf:
        yield places.problem(
            ("spark", "conf", "spark.master"), "is refused there; use spark.master:"
        )


def _step_problems(
    step: Step, inputs: tuple[str, ...], streams: set[str]
) -> Iterator[tuple[str, str]]:
    if step.state is not None:
        yield "state", "it has no such steps; group with SQL, or use `danube pipeline run`"
    for each in step.expect or ():
        if each.otherwise != "drop":
            yield (
                "expect",
                f"it has no expectations: {each.name} can only drop there (otherwise: drop), or "
                "use `danube pipeline run`",
            )
    if step.sql is None:
        return
    bare = QUOTED.sub(" ", step.sql)
    for name in inputs:
        mentions = len(re.findall(rf"\b{name}\b(?!\s*\.)", bare, re.IGNORECASE))
        if name in streams and mentions != len(_named(name).findall(bare)):
            yield (
                "sql",
                f"names {name} elsewhere than behind FROM or JOIN, where it cannot be marked as a "
                "stream; write it as a JOIN, and give columns other names",
            )


def _sink_problems(sink: Sink) -> Iterator[tuple[str, str]]:
    if kind_of(sink).declared(sink, {}) is None:
        yield (
            "format",
            f"{sink.format} needs a sink that commits from Python, which it has not; write to a "
            "topic that is a table (danube table enable), or use `danube pipeline run`",
        )
    if sink.mode != "append":
        yield "mode", "it only appends; AutoCDC needs a table with MERGE, which parquet has not"
    if sink.partition_by:
        yield "partition_by", "its sinks are not partitioned; leave it out"
    if sink.trigger is not None and not sink.trigger.available_now:
        yield "trigger", "each run drains and stops; leave it out, and run it on a schedule"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
