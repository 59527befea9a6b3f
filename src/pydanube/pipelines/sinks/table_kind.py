"""Kinds of sinks that are tables with commits."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from typing_extensions import override

from pydanube.pipelines.definitions import Sink
from pydanube.pipelines.lake_parts import write_frame
from pydanube.pipelines.lakes import BatchId, FileLake, Lake
from pydanube.pipelines.sinks.kind import SinkKind, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TableKind(SinkKind):
    """Tables whose commits hold the rows of a batch together with its number."""

    is_table = True

    @override
    @abstractmethod
    def table(self, sink: Sink) -> Lake:
        """Return the table."""

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
        lake = self.table(sink)
        if sink.mode == "upsert" or not isinstance(lake, FileLake):
            # Rows of one key meet in memory, and so do those of a database's transaction; a batch
            # has no more than the source's limits allow.
            rows = frame.toArrow()
            version = lake.write(
                rows, batch, mode=sink.mode, key=sink.key, partition_by=sink.partition_by
            )
            return Written(rows=rows.num_rows, version=version, counts=lake.counts)
        done = write_frame(frame, lake, batch, mode=sink.mode, partition_by=sink.partition_by)
        return Written(rows=done.rows, version=done.version, counts=lake.counts)
