"""Sinks for trying a pipeline: rows are printed, or thrown away."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from pydanube.pipelines.definitions import Sink
from pydanube.pipelines.lakes import BatchId
from pydanube.pipelines.places import Path
from pydanube.pipelines.sinks.counted import counted
from pydanube.pipelines.sinks.kind import Promise, SinkKind, Written
from pydanube.pipelines.sinks.problems import (
    needs_key_for_upsert,
    not_by_name,
    not_by_path,
    not_for_topics,
    not_partitioned,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class NoopSink(SinkKind):
    """Throws rows away, and counts them."""

    @override
    def problems(self, sink: Sink) -> Iterator[tuple[Path, str]]:
        yield from not_for_topics(sink)
        yield from not_by_name(sink)
        yield from not_by_path(sink)
        yield from needs_key_for_upsert(sink)
        yield from not_partitioned(sink)

    @override
    def promise(self, sink: Sink, unversioned: Sequence[str]) -> Promise:
        return Promise("at least once", "nothing is kept that would know a repeat")

    @override
    def write(
        self,
        sink: Sink,
        frame: "DataFrame",
        batch: BatchId,
        danube: Mapping[str, str],
        *,
        ordered: bool,
    ) -> Written:
        watched, count = counted(frame)
        watched.write.format("noop").mode("overwrite").save()
        return Written(rows=count())


class ConsoleSink(NoopSink):
    """Prints rows."""

    @override
    def write(
        self,
        sink: Sink,
        frame: "DataFrame",
        batch: BatchId,
        danube: Mapping[str, str],
        *,
        ordered: bool,
    ) -> Written:
        rows = frame.count()
        print(f"batch {batch.number}: {rows} rows")  # noqa: T201  It is the console's sink.
        frame.show(truncate=False)
        return Written(rows=rows)
