"""A topic as a source of rows: what there is, and ranges of it, through the brokers."""

from collections.abc import Iterator, Mapping
from typing import Literal

import pyarrow as pa
from typing_extensions import override

from pydanube.errors import NotFound
from pydanube.spark.brokers import Brokers, Patience
from pydanube.spark.options import Access, ReadOptions, Selection
from pydanube.spark.source.hints import DIRECT_BYTES_MIN, plan_tasks
from pydanube.spark.source.planning import Piece, TopicState
from pydanube.spark.source.reading import PieceReader, PieceTask
from pydanube.spark.source.rows import COLUMNS, stored_columns
from pydanube.spark.source.topics import Topics
from pydanube.tables.ranges import TopicSource
from pydanube.tables.state import Span

SHORT = Patience(give_up_seconds=5.0)
"""Whoever asks repeatedly, and may be asked to stop, does not wait for long."""


class BrokerTopic(TopicSource):
    """A reliable topic with all its partitions. Blocks."""

    def __init__(
        self, access: Access, topic: str, segment_access: Literal["auto", "broker"] = "broker"
    ) -> None:
        self._topic = topic
        self._brokers = Brokers(access, SHORT)
        self._options = ReadOptions(
            access=access,
            selection=Selection(names=(topic,)),
            starting_offsets="earliest",
            segment_access=segment_access,
        )

    @property
    @override
    def topic(self) -> str:
        return self._topic

    @override
    def states(self) -> Mapping[str, TopicState]:
        return self.wait({}, 0)

    def wait(self, after: Mapping[str, int], wait_ms: int) -> Mapping[str, TopicState]:
        """Return what there is, at once or when a partition has more than `after`."""
        topics = Topics(self._brokers, self._options.selection)
        found = topics.states(after, wait_ms)
        if not found:
            raise NotFound(f"there is no topic {self._topic}")
        return found

    @override
    def read(self, name: str, span: Span) -> Iterator[tuple[int, pa.RecordBatch]]:
        piece = Piece(topic=name, id=span.id, start=span.start, end=span.end)
        task = PieceTask(piece=piece)
        if self._options.segment_access != "broker":
            topics = Topics(self._brokers, self._options.selection)
            (task,) = plan_tasks(self._options, topics, [piece], {name: DIRECT_BYTES_MIN})
        return PieceReader(self._options, task, stored_columns(COLUMNS)).rows()
