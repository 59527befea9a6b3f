"""Parquet files as sinks: a batch has a directory of its own, which a repeat writes anew."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from pydanube.pipelines.definitions import Sink
from pydanube.pipelines.lakes import BatchId, storage_options
from pydanube.pipelines.places import Path
from pydanube.pipelines.sinks.counted import counted
from pydanube.pipelines.sinks.kind import Promise, SinkKind, Written
from pydanube.pipelines.sinks.problems import (
    needs_key_for_upsert,
    needs_path,
    not_by_name,
    not_for_topics,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ParquetSink(SinkKind):
    """A directory of Parquet files."""

    shares_path = False

    @override
    def problems(self, sink: Sink) -> Iterator[tuple[Path, str]]:
        yield from not_for_topics(sink)
        yield from needs_path(sink)
        yield from not_by_name(sink)
        if sink.mode != "append":
            yield ("mode",), "parquet files are only appended to; use format: delta or iceberg"
        yield from needs_key_for_upsert(sink)

    @override
    def promise(self, sink: Sink, unversioned: Sequence[str]) -> Promise:
        return Promise(
            "exactly once", "a batch has a directory of its own, which a repeat writes anew"
        )

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
        path = f"{sink.path}/danube_batch={batch.query}-{batch.number:09d}"
        watched, count = counted(frame)
        writer = watched.write.mode("overwrite").partitionBy(*sink.partition_by)
        writer.options(**storage_options(sink.options)).parquet(path)
        return Written(rows=count())

    @override
    def declared(self, sink: Sink, danube: Mapping[str, str]) -> Mapping[str, str]:
        # Not where the pipeline's own runs write: Spark hides files that its log does not name.
        return {"path": f"{(sink.path or '').rstrip('/')}-sdp"}
