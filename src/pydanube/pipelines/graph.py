"""How the parts of a pipeline hang together: flows, and what is wrong with them. Pure."""

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.pipelines.definitions import (
    PipelineDefinition,
    Sink,
    Source,
    Step,
    Trigger,
    Watermark,
)
from pydanube.pipelines.errors import InvalidPipeline, Problem
from pydanube.pipelines.places import Path, Places
from pydanube.pipelines.sinks.catalog import kind_names, kind_of
from pydanube.pipelines.sinks.problems import iceberg_problems, topic_problem
from pydanube.spark.amounts import read_duration_ms, read_size

REJECTED = ".rejected"
"""What the name of a flow ends in that carries rejected rows alone."""

QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CHANCE = re.compile(
    r"\b(rand|randn|random|uuid|now|current_timestamp|current_date|current_time|localtimestamp|"
    r"monotonically_increasing_id|shuffle|spark_partition_id|input_file_name)\b\s*(\()?",
    re.IGNORECASE,
)
_BARE_CLOCKS = ("current_timestamp", "current_date", "current_time", "localtimestamp")
_UNITS_MS = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_INTERVAL = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*((?:{'|'.join(_UNITS_MS)})s?)\s*", re.IGNORECASE)
_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class Flow(Struct, frozen=True, kw_only=True):
    """What one sink needs: the sources it reads and the steps on the way, in order."""

    pipeline: str
    sink: Sink
    sources: dict[str, Source]
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        """Name the flow as progress lines do."""
        return f"{self.pipeline}/{self.sink.name}"

    @property
    def expects(self) -> bool:
        """Whether rows are judged on the way."""
        return any(step.expect for step in self.steps)

    @property
    def streams(self) -> list[str]:
        """Name the sources that are followed."""
        return [name for name, source in self.sources.items() if source.mode == "stream"]


def check_graph(definition: PipelineDefinition, places: Places | None = None) -> None:
    """Refuse parts that do not fit together; InvalidPipeline names every mistake."""
    problems = list(_problems(definition, places or Places(None)))
    if problems:
        raise InvalidPipeline(problems)


def flows_of(definition: PipelineDefinition) -> tuple[Flow, ...]:
    """Return one flow per sink. The definition has been checked."""
    inputs = inputs_of(definition)
    found = []
    for sink in definition.sinks:
        needed = _needed(sink.from_, inputs)
        found.append(
            Flow(
                pipeline=definition.pipeline,
                sink=sink,
                sources={n: s for n, s in definition.sources.items() if n in needed},
                steps=tuple(step for step in definition.steps if step.name in needed),
            )
        )
    return tuple(found)


def inputs_of(definition: PipelineDefinition) -> dict[str, tuple[str, ...]]:
    """Return what each step reads: by `from`, or the names that its SQL mentions."""
    known = list(definition.sources)
    found = {}
    for step in definition.steps:
        found[step.name] = step_inputs(step, known)
        known.append(step.name)
    return found


def step_inputs(step: Step, known: list[str]) -> tuple[str, ...]:
    """Return which of the known names a step reads."""
    if step.sql is None:
        return (step.from_,) if step.from_ is not None else ()
    words = {word.lower() for word in _WORD.findall(QUOTED.sub(" ", step.sql))}
    return tuple(name for name in known if name.lower() in words)


def chance_in(sql: str) -> str | None:
    """Return the first function whose answer another run would not repeat."""
    for match in _CHANCE.finditer(QUOTED.sub(" ", sql)):
        if match[2] or match[1].lower() in _BARE_CLOCKS:
            return match[1]
    return None


def lengthened(watermark: Watermark, steps: tuple[Step, ...]) -> Watermark:
    """Return a watermark that waits at least as long as steps remember keys for dedupe.

    Spark forgets a key when the watermark has passed it, and knows one watermark per query.
    """
    delays = [watermark.delay, *(step.dedupe.within for step in steps if step.dedupe is not None)]
    return Watermark(column=watermark.column, delay=max(delays, key=interval_ms))


def interval_ms(text: str) -> float:
    """Return how long a length of time as Spark writes it is; it was checked."""
    found = _INTERVAL.fullmatch(text)
    assert found is not None, "it was checked"
    return float(found[1]) * _UNITS_MS[found[2].lower().removesuffix("s")]


def _needed(name: str, inputs: Mapping[str, tuple[str, ...]]) -> set[str]:
    found, waiting = set(), [name]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += inputs.get(each, ())
    return found


def _problems(definition: PipelineDefinition, places: Places) -> Iterator[Problem]:
    yield from _names_problems(definition, places)
    for name, source in definition.sources.items():
        for key, message in _source_problems(source):
            yield places.problem(("sources", name, *key), message)
    known = list(definition.sources)
    for number, step in enumerate(definition.steps):
        for key, message in _step_problems(step, known, definition):
            yield places.problem(("steps", number, *key), message)
        known.append(step.name)
    for number, sink in enumerate(definition.sinks):
        for key, message in _sink_problems(sink, known):
            yield places.problem(("sinks", number, *key), message)
    yield from _target_problems(definition, places)
    yield from _flow_problems(definition, places)
    for path, trigger in _triggers(definition):
        for message in _trigger_problems(trigger):
            yield places.problem(path, message)
    pauses = definition.on_failure
    for name, pause in (("backoff", pauses.backoff), ("max_backoff", pauses.max_backoff)):
        if wrong := _duration_problem(pause):
            yield places.problem(("on_failure", name), wrong)
    if (promised := definition.spark.row_bytes_max) is not None:
        try:
            read_size(str(promised))
        except InvalidRequest as error:
            yield places.problem(("spark", "row_bytes_max"), str(error))
    if not definition.checkpoints.startswith(("file:///", "/")):
        yield places.problem(
            ("checkpoints",),
            f"{definition.checkpoints!r} is no directory; write file:///… for one that this "
            "machine and Spark's workers share",
        )


def _names_problems(definition: PipelineDefinition, places: Places) -> Iterator[Problem]:
    seen = {name.lower() for name in definition.sources}
    for number, step in enumerate(definition.steps):
        if step.name.lower() in seen:
            yield places.problem(
                ("steps", number, "name"),
                f"{step.name} is taken; every source and step has its own",
            )
        seen.add(step.name.lower())
    sinks: set[str] = set()
    for number, sink in enumerate(definition.sinks):
        if sink.name in sinks:
            yield places.problem(
                ("sinks", number, "name"), f"{sink.name} is taken; every sink has a checkpoint"
            )
        sinks.add(sink.name)


def _source_problems(source: Source) -> Iterator[tuple[Path, str]]:
    if source.format == "danube":
        if len(source.selection) != 1:
            yield (), "give one of topic, topics, topics_pattern, such as topic: /default/orders"
        for topic in filter(None, (source.topic, *source.topics)):
            if message := topic_problem(topic):
                yield ("topic" if source.topic else "topics",), message
        if source.path is not None:
            yield ("path",), "is for tables; a danube source has a topic"
        if source.mode == "static":
            yield ("mode",), "a topic is followed; leave mode out, or read a table"
    else:
        if source.path is None:
            yield (), f"a {source.format} source needs path, such as file:///lake/customers"
        if source.mode != "static":
            yield (), f"a {source.format} source is looked up: add mode: static"
        if source.selection or source.decode != "raw":
            yield (), f"a {source.format} source has a path, no topic and nothing to decode"
    if source.watermark is not None:
        if source.mode == "static":
            yield ("watermark",), "a table that is looked up has none; remove it"
        if not _INTERVAL.fullmatch(source.watermark.delay):
            yield ("watermark", "delay"), _interval_message(source.watermark.delay)


def _step_problems(
    step: Step, known: list[str], definition: PipelineDefinition
) -> Iterator[tuple[Path, str]]:
    if len(step.verbs) != 1:
        what = f"has {' and '.join(step.verbs)}" if step.verbs else "has none"
        yield (), f"a step has one of sql, python, expect, dedupe, state; {step.name} {what}"
    if step.sql is not None:
        if step.from_ is not None:
            yield ("from",), "an sql step names what it reads in its text; remove from"
        if not step_inputs(step, known):
            yield ("sql",), f"reads none of {', '.join(known)}; select from one of them"
        if ";" in QUOTED.sub(" ", step.sql).rstrip().rstrip(";"):
            yield ("sql",), "is more than one statement; make a step of each"
    elif step.from_ is None:
        yield (), f"says not what it reads; add from: {known[-1]}"
    elif step.from_ not in known:
        yield ("from",), f"there is no {step.from_} before it; there are {', '.join(known)}"
    if step.python is not None and not _CALLABLE.fullmatch(step.python):
        yield ("python",), f"{step.python!r} is no function; write it as package.module:function"
    if step.state is not None and not _CALLABLE.fullmatch(step.state.processor):
        yield (
            ("state", "class"),
            f"{step.state.processor!r} is no class; write it as package.module:Class",
        )
    if step.dedupe is not None and not _INTERVAL.fullmatch(step.dedupe.within):
        yield ("dedupe", "within"), _interval_message(step.dedupe.within)
    if step.expect is not None:
        if not step.expect:
            yield ("expect",), "is empty; add an expectation, or remove the step"
        names = [each.name for each in step.expect]
        for number, each in enumerate(step.expect):
            if names.index(each.name) != number:
                yield ("expect", number, "name"), f"{each.name} is taken in this step"
            if each.otherwise == "dead_letter" and definition.dead_letter is None:
                yield (
                    ("expect", number, "otherwise"),
                    "sends rows to dead letters, and there are none: add "
                    "dead_letter: {topic: /default/NAME} to the pipeline",
                )


def _sink_problems(sink: Sink, known: list[str]) -> Iterator[tuple[Path, str]]:
    if sink.from_ not in known:
        yield ("from",), f"there is no {sink.from_}; there are {', '.join(known)}"
    if sink.format not in kind_names():
        yield ("format",), f"{sink.format!r} is none of {', '.join(kind_names())}"
        return
    yield from kind_of(sink).problems(sink)


def _target_problems(definition: PipelineDefinition, places: Places) -> Iterator[Problem]:
    """Refuse flows that would take each other's place."""
    paths: dict[str, Sink] = {}
    for number, sink in enumerate(definition.sinks):
        if sink.path is None:
            continue
        path = sink.path.removeprefix("file://").rstrip("/")
        if path in paths and not all(_shares_path(each) for each in (sink, paths[path])):
            yield places.problem(
                ("sinks", number, "path"),
                f"two flows into one parquet table {sink.path} lose each other's rows; unite them "
                "in one flow with UNION ALL, or use format: delta or iceberg",
            )
        paths.setdefault(path, sink)
    dead = definition.dead_letter
    if dead is not None:
        if sum(each is not None for each in (dead.topic, dead.path, dead.table)) != 1:
            yield places.problem(
                ("dead_letter",),
                "give topic: /default/NAME, path: of a Delta table, or table: and catalog: of an "
                "Iceberg one",
            )
        if dead.table is not None:
            for key, words in iceberg_problems(dead.table, dead.catalog, "a dead letter"):
                yield places.problem(("dead_letter", *key), words)
            if any(dead.table == sink.table for sink in definition.sinks):
                yield places.problem(("dead_letter", "table"), "is a sink's table; use another")
        if dead.topic is not None and (message := topic_problem(dead.topic)):
            yield places.problem(("dead_letter", "topic"), message)
        if dead.path is not None and dead.path.removeprefix("file://").rstrip("/") in paths:
            yield places.problem(("dead_letter", "path"), "is a sink's table; use another path")


def _shares_path(sink: Sink) -> bool:
    return sink.format not in kind_names() or kind_of(sink).shares_path


def _needs_same_rows(sink: Sink) -> bool:
    return sink.format in kind_names() and kind_of(sink).needs_same_rows(sink)


def _flow_problems(definition: PipelineDefinition, places: Places) -> Iterator[Problem]:
    inputs = inputs_of(definition)
    for number, sink in enumerate(definition.sinks):
        needed = _needed(sink.from_, inputs)
        sources = [name for name in definition.sources if name in needed]
        if not any(definition.sources[name].mode == "stream" for name in sources):
            yield places.problem(
                ("sinks", number, "from"), "follows no topic: one of its sources must be a stream"
            )
        once = _needs_same_rows(sink)
        for index, step in enumerate(definition.steps):
            if step.name not in needed:
                continue
            if step.dedupe is not None and not _has_watermark(step, definition, inputs):
                yield places.problem(
                    ("steps", index, "dedupe"),
                    "needs a watermark, or its state would grow for ever; add watermark: {column: "
                    f"{step.dedupe.time}, delay: 10 minutes}} to the source",
                )
            if step.state is not None:
                for key, message in _state_problems(step, sink, definition, inputs):
                    yield places.problem(("steps", index, "state", *key), message)
            found = chance_in(step.sql) if once and step.sql is not None else None
            if found is not None:
                yield places.problem(
                    ("steps", index, "sql"),
                    f"{found} gives another answer when a batch is repeated, and sink {sink.name} "
                    "stores each row once; take the value from the data (such as publish_time), "
                    "or give the sink guarantee: at_least_once",
                )


def _state_problems(
    step: Step,
    sink: Sink,
    definition: PipelineDefinition,
    inputs: Mapping[str, tuple[str, ...]],
) -> Iterator[tuple[Path, str]]:
    assert step.state is not None
    if sink.mode == "complete":
        yield (), f"gives changes, and sink {sink.name} wants everything: use mode: upsert"
    if step.state.time == "event" and not _has_watermark(step, definition, inputs):
        yield (
            ("time",),
            "event needs a watermark; add watermark: {column: …, delay: 10 minutes} to the source",
        )
    if step.state.time == "processing" and _needs_same_rows(sink):
        yield (
            ("time",),
            f"processing goes by the clock, so a repeated batch would give sink {sink.name} other "
            "rows; use time: event, or give the sink guarantee: at_least_once",
        )


def _has_watermark(
    step: Step, definition: PipelineDefinition, inputs: Mapping[str, tuple[str, ...]]
) -> bool:
    return any(
        definition.sources[name].watermark is not None
        for name in _needed(step.name, inputs)
        if name in definition.sources
    )


def _triggers(definition: PipelineDefinition) -> Iterator[tuple[Path, Trigger]]:
    yield ("trigger",), definition.trigger
    for number, sink in enumerate(definition.sinks):
        if sink.trigger is not None:
            yield ("sinks", number, "trigger"), sink.trigger


def _trigger_problems(trigger: Trigger) -> Iterator[str]:
    given = [trigger.every is not None, trigger.continuous, trigger.available_now]
    if sum(given) != 1:
        yield "give one of every: 5s, continuous: true, available_now: true"
    if trigger.every is not None and (message := _duration_problem(trigger.every)):
        yield message


def _duration_problem(text: str) -> str | None:
    try:
        read_duration_ms(text)
    except InvalidRequest as error:
        return str(error)
    return None


def _interval_message(text: str) -> str:
    return f"{text!r} is no length of time; write it as 10 minutes or 1 hour"
