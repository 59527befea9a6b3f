"""`spark.read.format("danube")`: one vector of offsets for all topics, cut into tasks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from typing_extensions import override

from pydanube.spark.brokers import brokers_of, found_brokers
from pydanube.spark.options import ReadOptions
from pydanube.spark.registry import ReaderSchema
from pydanube.spark.source.conditions import (
    Condition,
    Operator,
    clip,
    holds_for,
    is_applied,
)
from pydanube.spark.source.cursors import position_of
from pydanube.spark.source.hints import plan_tasks
from pydanube.spark.source.planning import Piece, TopicState, choose_grid, cut
from pydanube.spark.source.ranges import check_vector, starts_of
from pydanube.spark.source.reading import PieceTask, read_task
from pydanube.spark.source.rows import Place
from pydanube.spark.source.topics import Topics
from pydanube.spark.workers import keep_what_is_loaded

_OPERATORS: Mapping[type[Filter], Operator] = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "in",
    StringStartsWith: "prefix",
    IsNotNull: "set",
}


class TaskPartition(InputPartition):
    """What Spark carries to a task."""

    def __init__(self, task: PieceTask) -> None:
        super().__init__(task)
        self.task = task


class ReadRange(NamedTuple):
    """What a batch reads: one vector of offsets, fixed at one moment."""

    topics: Topics
    states: Mapping[str, TopicState]
    bounds: dict[str, tuple[int, int]]
    """[start, end) by physical topic; an empty range has nothing to read."""


def resolve_range(options: ReadOptions, conditions: Sequence[Condition]) -> ReadRange:
    """Ask the brokers what there is, and fix what of it is to be read."""
    topics = Topics(found_brokers(options.access), options.selection)
    topics.discover()
    states = topics.states()
    topics.must_exist(states)
    starts = _starts(options, topics, states)
    ends = _ends(options, topics, states)
    bounds = {}
    for name, state in states.items():
        if holds_for(conditions, Place.of(name)):
            start, end = starts[name], min(max(ends[name], starts[name]), state.frontier)
            bounds[name] = clip(conditions, start, end)
    return ReadRange(topics, states, bounds)


def _starts(
    options: ReadOptions, topics: Topics, states: Mapping[str, TopicState]
) -> Mapping[str, int]:
    if options.starting_time_ms is not None:
        return topics.at_time(states, options.starting_time_ms)
    match options.starting_offsets:
        case "earliest":
            return {name: state.earliest for name, state in states.items()}
        case "latest":
            return {name: state.frontier for name, state in states.items()}
        case "committed":
            vector = _committed(options, states)
        case vector:
            check_vector("startingOffsets", vector, states)
    return starts_of(vector, states, strict=options.fail_on_data_loss)


def _committed(options: ReadOptions, states: Mapping[str, TopicState]) -> dict[str, int]:
    assert options.subscription is not None, "options were checked"
    brokers = brokers_of(options.access)
    found = {name: position_of(brokers, name, options.subscription) for name in states}
    return {name: cursor.position for name, cursor in found.items() if cursor is not None}


def _ends(
    options: ReadOptions, topics: Topics, states: Mapping[str, TopicState]
) -> Mapping[str, int]:
    if options.ending_time_ms is not None:
        return topics.at_time(states, options.ending_time_ms)
    latest = {name: state.frontier for name, state in states.items()}
    if options.ending_offsets == "latest":
        return latest
    check_vector("endingOffsets", options.ending_offsets, states)
    return {**latest, **options.ending_offsets}


class BatchReader(DataSourceReader):
    """Fixes what is read when it is planned; reads exactly that, whatever is published later."""

    def __init__(
        self, options: ReadOptions, schema: pa.Schema, reader: ReaderSchema | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._reader = reader
        self._conditions: list[Condition] = []

    @override
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        found = resolve_range(options, self._conditions)
        sizes = {name: state.row_bytes for name, state in found.states.items()}
        grid = choose_grid(
            ((end - start, sizes[name]) for name, (start, end) in found.bounds.items()),
            task_bytes=options.task_bytes,
            tasks_min=options.tasks_min,
            split=options.split,
        )
        pieces: list[Piece] = []
        for name in sorted(found.bounds):
            pieces += cut(name, found.states[name].id, *found.bounds[name], grid)
        tasks = plan_tasks(options, found.topics, pieces, sizes)
        keep_what_is_loaded()
        return [TaskPartition(task) for task in tasks]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TaskPartition):
            return iter(())  # Spark's stand-in where there is nothing to read.
        return read_task(
            self._options, partition.task, self._schema, self._conditions, self._reader
        )


class FilteringBatchReader(BatchReader):
    """Takes over the filters it can apply exactly. Spark refuses it unless its setting is on."""

    @override
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            condition = condition_of(each)
            if condition is not None and is_applied(condition):
                self._conditions.append(condition)
            else:
                yield each


def condition_of(pushed: Filter) -> Condition | None:
    """Return a filter of Spark's as a condition; None if it is none of those we know."""
    operator = _OPERATORS.get(type(pushed))
    path: tuple[str, ...] = getattr(pushed, "attribute", ())
    if operator is None or len(path) != 1:
        return None
    column = path[0]
    value = getattr(pushed, "value", None)
    if operator == "in":
        # Nothing equals null, so a null among the values changes nothing.
        value = tuple(each for each in value or () if each is not None)
    if column == "publish_time" and operator != "set":
        values = value if operator == "in" else (value,)
        if not all(isinstance(each, datetime) and each.tzinfo for each in values or ()):
            return None
    return Condition(column, operator, value)
