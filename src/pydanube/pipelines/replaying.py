"""A bounded part of history, or the dead letters, through the steps of a flow, as one batch.

It goes into a new topic or table, into a table that replaces the live one in one commit (`swap`),
or into the live table by key. Rows that expectations reject are left out: the flow itself has sent
them to the dead letters.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from pydanube.errors import AlreadyExists, InvalidRequest
from pydanube.pipelines.dead_letters import letters_of, places_of
from pydanube.pipelines.definitions import PipelineDefinition
from pydanube.pipelines.errors import FlowRefused
from pydanube.pipelines.flow_files import FlowFiles
from pydanube.pipelines.frames import FlowFrames, look_up, version_of
from pydanube.pipelines.graph import Flow
from pydanube.pipelines.lake_parts import copy_table, write_frame, write_keyed
from pydanube.pipelines.lakes import BatchId, FileLake, Lake
from pydanube.pipelines.runner import chosen_flows
from pydanube.pipelines.sinks.catalog import kind_of
from pydanube.pipelines.sinks.delta import delta_at
from pydanube.pipelines.waiting import begins_and_frontiers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACE = ("topic", "partition", "offset")

_WORDS = ("earliest", "latest")
_REPLAY = "replay"
_SMALL_BYTES = 64 * 1024
"""Of a replay, which may have thousands of tasks: what each may hand back to the driver."""

Vectors = dict[str, dict[str, int]]
"""Offsets by partition, by source."""


class Replayed(Struct, frozen=True, kw_only=True):
    """What a replay came to."""

    flow: str
    into: str
    rows: int
    swapped: bool = False
    """Whether the live table holds these rows now, and nothing else."""
    dry_run: bool = False
    """Whether nothing was written: the rows are those it would be."""


def replay(
    definition: PipelineDefinition,
    spark: "SparkSession",
    flow: str,
    *,
    start: str | None = None,
    end: str | None = None,
    into: str,
    swap: bool = False,
    dead_letters: bool = False,
    dry_run: bool = False,
) -> Replayed:
    """Apply a flow's steps to a range of its topics, or to its dead letters.

    The same into the same topic or table again adds nothing. With `swap` the range is what the
    live table holds, and the table is replaced by the outcome in one commit; the flow must not run
    meanwhile, and goes on afterwards as if nothing had happened. `dry_run` refuses what would be
    refused, counts the rows and writes nothing.
    """
    (chosen,) = chosen_flows(definition, flow)
    one = _Replay(definition, chosen, spark, dry_run=dry_run)
    if dead_letters:
        if start is not None or end is not None or swap:
            raise InvalidRequest("--dead-letters takes all of them: leave --from, --to, --swap out")
        return one.dead_letters(into)
    if swap:
        if end is not None:
            raise InvalidRequest(
                "--swap replays what the live table holds; leave --to out, and run the flow for "
                "what came later"
            )
        return one.swap(into, start)
    return one.range(into, start or "earliest", end or "latest")


class _Replay:
    """One replay of one flow."""

    def __init__(
        self, definition: PipelineDefinition, flow: Flow, spark: "SparkSession", *, dry_run: bool
    ) -> None:
        self._dry_run = dry_run
        self._definition = definition
        self._flow = flow
        self._spark = spark
        self._frames = FlowFrames(flow, definition.danube, definition.parameters)
        self._files = FlowFiles(definition.checkpoints, flow.pipeline, flow.sink.name)
        self._kind = kind_of(flow.sink)
        self._live = self._kind.table(flow.sink)

    def range(self, into: str, start: str, end: str) -> Replayed:
        """Replay between two boundaries."""
        boundaries = _boundary("starting", start) | _boundary("ending", end)
        frame = self._applied({name: boundaries for name in self._flow.streams})
        job = f"{_REPLAY}/{self._flow.name}/{start}/{end}"
        if into not in (self._flow.sink.topic, self._flow.sink.path, self._flow.sink.table):
            return self._written(frame, job, into)
        sink = self._flow.sink
        if sink.mode != "upsert" or self._live is None:
            raise InvalidRequest(
                f"{into} is the live sink of {self._flow.name}, and has no key to tell rows apart; "
                "replay into a new one, with --swap if it shall take the place of this one"
            )
        if self._dry_run:
            return self._counted(frame, into)
        rows = write_keyed(frame, self._live, job, _REPLAY, sink.key)
        return Replayed(flow=self._flow.name, into=into, rows=rows)

    def swap(self, into: str, start: str | None) -> Replayed:
        """Replay what the live table holds, and let the outcome take its place."""
        live = self._live
        if not isinstance(live, FileLake):
            raise InvalidRequest(
                f"{self._flow.sink.target} cannot be replaced: only Delta and Iceberg tables can. "
                f"Leave --swap out, and let readers go on with {into}"
            )
        if into in (self._flow.sink.path, self._flow.sink.table):
            raise InvalidRequest(f"{into} is the live sink itself; name a new one")
        with self._alone():
            held = live.last_batch(self._flow.name)
            if held is None:
                raise FlowRefused(f"{live.name} holds no batch of {self._flow.name}: run it first")
            begins = self._begins(start)
            bounds = self._bounds(begins, held.offsets)
            frame = self._applied(bounds)
            self._check_swappable()
            job = f"{_REPLAY}/{self._flow.name}/{json.dumps(bounds, sort_keys=True)}"
            new = self._beside(into)
            assert isinstance(new, FileLake), "it is of the live one's kind"
            begun = new.last_batch(job) is not None
            if not begun and new.parts():
                raise AlreadyExists(f"{into} holds something else; name a new table")
            if self._dry_run:
                return self._counted(frame, into)
            if not begun:
                self._write(frame, job, into)
            who = BatchId(flow=f"swap/{self._flow.name}", query=f"{into}/{job}", number=0)
            rows = copy_table(self._spark, new, live, who, self._flow.sink.partition_by)
        return Replayed(flow=self._flow.name, into=into, rows=rows, swapped=True)

    def dead_letters(self, into: str) -> Replayed:
        """Give rejected rows another try."""
        target = self._definition.dead_letter
        if target is None:
            raise InvalidRequest(f"{self._flow.pipeline} has no dead letters to replay")
        letters, vector = letters_of(self._spark, target, self._definition.danube.options())
        sources = {}
        for name in self._flow.streams:
            source = self._flow.sources[name]
            rows = places_of(letters, self._flow.pipeline, source)
            if source.decode == "schema":
                rows = self._read_again(name, rows)
            sources[name] = rows
        frame = self._shaped(sources)
        job = f"{_REPLAY}/{self._flow.name}/dead/{vector}"
        sink = self._flow.sink
        if into not in (sink.topic, sink.path, sink.table):
            return self._written(frame, job, into)
        key = sink.key if sink.mode == "upsert" else PLACE
        if self._live is None or not set(key) <= set(frame.columns):
            raise InvalidRequest(
                f"{into} is the live sink of {self._flow.name}: dead letters go there only if it "
                "is a Delta or Iceberg table with a key, or with the columns topic, partition and "
                "offset, so that none is there twice. Replay into a new one"
            )
        if self._dry_run:
            return self._counted(frame, into)
        replaced = write_keyed(frame, self._live, job, _REPLAY, key)
        return Replayed(flow=self._flow.name, into=into, rows=replaced)

    def _counted(self, frame: "DataFrame", into: str) -> Replayed:
        return Replayed(flow=self._flow.name, into=into, rows=frame.count(), dry_run=True)

    def _written(self, frame: "DataFrame", job: str, into: str) -> Replayed:
        if self._dry_run:
            return self._counted(frame, into)
        return Replayed(flow=self._flow.name, into=into, rows=self._write(frame, job, into))

    def _write(self, frame: "DataFrame", job: str, into: str) -> int:
        sink = self._flow.sink
        sent = self._kind.replay(sink, frame, job, into, self._definition.danube.options())
        if sent is not None:
            return sent
        lake: Lake = self._beside(into)
        if lake.last_batch(job) is not None:
            raise AlreadyExists(f"{into} holds this replay already")
        who = BatchId(flow=job, query=_REPLAY, number=0)
        if not isinstance(lake, FileLake):
            rows = frame.toArrow()
            lake.write(rows, who)
            return int(rows.num_rows)
        return write_frame(
            frame, lake, who, partition_by=sink.partition_by, small_bytes=_SMALL_BYTES
        ).rows

    def _beside(self, into: str) -> Lake:
        return self._kind.beside(self._flow.sink, into) or delta_at(into, {})

    def _applied(self, boundaries: Mapping[str, Mapping[str, str]]) -> "DataFrame":
        """Return the flow's steps over ranges of its topics."""
        sources = {}
        for name in self._flow.streams:
            options = self._frames.options_of(name)
            for option in ("subscription", "startingOffsets", "startingTimestamp"):
                options.pop(option, None)
            allowed = {key: value for key, value in options.items() if "Trigger" not in key}
            allowed |= boundaries[name]
            sources[name] = self._spark.read.format("danube").options(**allowed).load()
        return self._shaped(sources)

    def _shaped(self, sources: "dict[str, DataFrame]") -> "DataFrame":
        for name, source in self._flow.sources.items():
            if source.mode == "static":
                sources[name] = look_up(self._spark, source, version_of(source))
        ordered = {name: sources[name] for name in self._flow.sources}
        return self._frames.shape(self._spark, ordered).frames[self._flow.sink.from_]

    def _begins(self, start: str | None) -> Vectors:
        if start is not None:
            return {name: _vector(start) for name in self._flow.streams}
        record = self._files.record()
        if record is None or not record.begins:
            raise FlowRefused(
                f"{self._flow.name}: nothing says where it began, so nobody knows what "
                f"{self._flow.sink.target} holds; say it with --from, earliest or offsets as JSON"
            )
        return record.begins

    def _bounds(
        self, begins: Vectors, ends: Mapping[str, Mapping[str, int]]
    ) -> dict[str, dict[str, str]]:
        """Return the range of each source as options: exactly what the live table was made of."""
        found = {}
        for name in self._flow.streams:
            there = begins_and_frontiers(self._frames, name)
            start = {
                topic: begins.get(name, {}).get(topic, low) for topic, (low, _) in there.items()
            }
            end = {topic: ends.get(name, {}).get(topic, start[topic]) for topic in there}
            found[name] = {
                "startingOffsets": json.dumps(start, sort_keys=True),
                "endingOffsets": json.dumps(end, sort_keys=True),
            }
        return found

    def _check_swappable(self) -> None:
        record = self._files.record()
        stateful = record is not None and record.identity.shuffle_partitions is not None
        if stateful and self._flow.sink.mode == "append":
            raise FlowRefused(
                f"{self._flow.name} keeps state and appends: what its state still holds back would "
                "be there twice. Use mode: upsert, or replay into a new table without --swap"
            )

    def _read_again(self, name: str, letters: "DataFrame") -> "DataFrame":
        """Return the rows of dead letters from their topic, decoded by today's schema."""
        found = letters.groupBy("topic", "partition").agg({"offset": "min"}).collect()
        starts: dict[str, int] = {}
        there = begins_and_frontiers(self._frames, name)
        lows = {(row[0], row[1]): row[2] for row in found}
        for topic, (low, high) in there.items():
            base, _, partition = topic.rpartition("-part-")
            place = (base, int(partition)) if base and partition.isdigit() else (topic, 0)
            starts[topic] = max(low, lows.get(place, high))
        boundaries = {"startingOffsets": json.dumps(starts)}
        options = self._frames.options_of(name)
        for option in ("subscription", "startingOffsets", "startingTimestamp"):
            options.pop(option, None)
        allowed = {key: value for key, value in options.items() if "Trigger" not in key}
        rows = self._spark.read.format("danube").options(**{**allowed, **boundaries}).load()
        return rows.join(letters.select(*PLACE), list(PLACE), "left_semi")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._files.hold()
        try:
            yield
        finally:
            self._files.let_go()


def _vector(text: str) -> dict[str, int]:
    if text == "earliest":
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, int])
    except msgspec.MsgspecError:
        raise InvalidRequest(
            f"--swap begins at earliest or at offsets by partition as JSON, not at {text}"
        ) from None


def _boundary(side: str, text: str) -> dict[str, str]:
    if text in _WORDS or text.startswith("{"):
        return {f"{side}Offsets": text}
    return {f"{side}Timestamp": text}
