"""What happens to one batch of a flow: judged, dead letters first, then the sink."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from pydanube.pipelines.dead_letters import table_of_letters
from pydanube.pipelines.definitions import DeadLetter, PipelineDefinition, Sink, Step
from pydanube.pipelines.flow_files import FlowFiles
from pydanube.pipelines.frames import FlowFrames, look_up, version_of
from pydanube.pipelines.judging import Judged, dead_letters, judge
from pydanube.pipelines.lake_parts import write_frame
from pydanube.pipelines.lakes import BatchId
from pydanube.pipelines.sinks.catalog import kind_of
from pydanube.pipelines.sinks.kind import Written
from pydanube.pipelines.sinks.topic import write_topic
from pydanube.spark.source.offsets import read_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEAD = "dead"
"""Tells the producer of dead letters from that of the sink."""

AfterDeadLetters = Callable[[int], None]


class BatchDone(Struct, frozen=True, kw_only=True):
    """What a batch came to."""

    rows_out: int
    dead_letters: int
    counts: Mapping[tuple[str, str], int]
    version: int | None = None
    counts_states: Literal["version", "snapshot"] = "version"


def write(
    sink: Sink, frame: "DataFrame", batch: BatchId, danube: Mapping[str, str], *, ordered: bool
) -> Written:
    """Write a batch as its kind of sink does."""
    return kind_of(sink).write(sink, frame, batch, danube, ordered=ordered)


class BatchWork:
    """Carries batches of one flow to its sink.

    The order is what makes a crash harmless: table versions noted, then dead letters, then the
    sink, all under the batch's number; Spark calls a batch done after that. So whatever was cut
    off is repeated, and whatever is repeated is known by its number.
    """

    def __init__(
        self,
        definition: PipelineDefinition,
        frames: FlowFrames,
        files: FlowFiles,
        *,
        cut: str,
        steps: tuple[Step, ...],
        ordered: bool,
        rejected_only: bool = False,
    ) -> None:
        self._definition = definition
        self._frames = frames
        self._flow = frames.flow
        self._files = files
        self._cut = cut
        self._steps = steps
        self._ordered = ordered
        self._rejected_only = rejected_only

    def __call__(self, batch: "DataFrame", number: int) -> BatchDone:
        """Carry out one batch."""
        query = self._files.query_id()
        assert query is not None, "Spark writes it before the first batch"
        spark = batch.sparkSession
        frames: dict[str, DataFrame] = {self._cut: batch, **self._statics(batch, number)}
        judged: list[tuple[Step, Judged]] = []
        try:
            for step in self._steps:
                if step.expect is None:
                    frames[step.name] = self._frames.apply(spark, step, frames)
                else:
                    assert step.from_ is not None, "it was checked"
                    found = judge(frames[step.from_], step, self._flow.name)
                    judged.append((step, found))
                    frames[step.name] = found.good
            rejected = self._write_dead_letters(judged, query, number)
            counts = {key: n for _, each in judged for key, n in each.counts.items()}
            if self._rejected_only:
                return BatchDone(rows_out=0, dead_letters=rejected, counts=counts)
            batch_id = BatchId(
                flow=self._flow.name,
                query=query,
                number=number,
                offsets=self._reached(number),
            )
            done = write(
                self._flow.sink,
                frames[self._flow.sink.from_],
                batch_id,
                self._definition.danube.options(),
                ordered=self._ordered,
            )
            return BatchDone(
                rows_out=done.rows,
                dead_letters=rejected,
                counts=counts,
                version=done.version,
                counts_states=done.counts,
            )
        finally:
            for _, each in judged:
                each.marked.unpersist()

    def _write_dead_letters(
        self, judged: list[tuple[Step, Judged]], query: str, number: int
    ) -> int:
        total = sum(each.rejected for _, each in judged)
        target = self._definition.dead_letter
        if not total or target is None:
            return 0
        letters: DataFrame | None = None
        for step, each in judged:
            if each.rejected:
                part = dead_letters(each, step, self._flow.pipeline)
                letters = part if letters is None else letters.unionByName(part)
        assert letters is not None, "there are rejected rows"
        self._send(letters, target, f"{query}/{DEAD}", number)
        return total

    def _send(self, letters: "DataFrame", target: DeadLetter, producer: str, number: int) -> None:
        if target.topic is not None:
            options = {**self._definition.danube.options(), "topic": target.topic}
            write_topic(letters, producer, number, options, ordered=self._ordered)
        else:
            lake = table_of_letters(target)
            assert lake is not None, "it was checked"
            name = f"{self._flow.name}/{DEAD}"
            who = BatchId(flow=name, query=producer.partition("/")[0], number=number)
            write_frame(letters, lake, who)

    def _statics(self, batch: "DataFrame", number: int) -> "dict[str, DataFrame]":
        """Return the tables that the batch looks things up in, at the versions it began with."""
        wanted = {n: s for n, s in self._flow.sources.items() if s.mode == "static"}
        if not wanted:
            return {}
        noted = self._files.static_versions(number)
        if noted is None:
            found = {name: version_of(source) for name, source in wanted.items()}
            noted = {name: version for name, version in found.items() if version is not None}
            self._files.note_static_versions(number, noted)
        return {
            name: look_up(batch.sparkSession, source, noted.get(name))
            for name, source in wanted.items()
        }

    def _reached(self, number: int) -> dict[str, dict[str, int]]:
        lines = self._files.offsets_of(number)
        return {
            name: dict(read_offset(json.loads(line)).next)
            for name, line in zip(self._flow.streams, lines, strict=False)
        }
