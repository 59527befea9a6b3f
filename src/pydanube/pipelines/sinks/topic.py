"""Topics of Danube as sinks: rows are known by their numbers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from pydanube.pipelines.definitions import Sink
from pydanube.pipelines.lakes import BatchId, storage_options
from pydanube.pipelines.places import Path
from pydanube.pipelines.sinks.counted import counted
from pydanube.pipelines.sinks.kind import Promise, SinkKind, Written
from pydanube.pipelines.sinks.problems import needs_key_for_upsert, not_by_name, not_partitioned
from pydanube.pipelines.sinks.problems import topic_problem as wrong_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TopicSink(SinkKind):
    """A topic, or the topic that each row names."""

    @override
    def problems(self, sink: Sink) -> Iterator[tuple[Path, str]]:
        if sink.path is not None:
            yield ("path",), "is for tables; a danube sink has a topic"
        if sink.topic is not None and (message := wrong_topic(sink.topic)):
            yield ("topic",), message
        if sink.mode != "append":
            yield ("mode",), "a topic is only appended to; use mode: append"
        if sink.encode in ("avro", "protobuf") and sink.schema_subject is None:
            yield (), f"encode: {sink.encode} needs schema_subject: the subject of its schema"
        yield from not_by_name(sink)
        yield from needs_key_for_upsert(sink)
        yield from not_partitioned(sink)

    @override
    def promise(self, sink: Sink, unversioned: Sequence[str]) -> Promise:
        if sink.guarantee == "at_least_once":
            return Promise("at least once", "the sink asks for no more")
        if unversioned:
            looked_up = ", ".join(unversioned)
            return Promise(
                "at least once",
                f"{looked_up} has no versions: a repeated batch may look up others",
            )
        return Promise(
            "exactly once", "rows are numbered by query, batch and task; a repeat is known"
        )

    @override
    def needs_same_rows(self, sink: Sink) -> bool:
        return sink.guarantee == "exactly_once"

    @override
    def check_columns(
        self, sink: Sink, columns: Sequence[tuple[str, str]], danube: Mapping[str, str]
    ) -> None:
        from pydanube.spark.options import write_options
        from pydanube.spark.sink.frames import check_frame

        check_frame(list(columns), write_options(topic_options(sink, danube), streaming=False))

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
        options = topic_options(sink, danube)
        return write_topic(frame, batch.query, batch.number, options, ordered=ordered)

    @override
    def replay(
        self, sink: Sink, frame: "DataFrame", job: str, into: str, danube: Mapping[str, str]
    ) -> int | None:
        if not into.startswith("/") or into.count("/") != 2:
            return None
        options = {**danube, "topic": into, "encode": sink.encode}
        if sink.schema_subject is not None:
            options["schemaSubject"] = sink.schema_subject
        options |= storage_options(sink.options)
        return write_topic(frame, job, 0, options, ordered=False).rows

    @override
    def declared(self, sink: Sink, danube: Mapping[str, str]) -> Mapping[str, str]:
        return {**topic_options(sink, danube), "order": "sorted"}


def topic_options(sink: Sink, danube: Mapping[str, str]) -> dict[str, str]:
    """Return a topic as sink in options of the data source."""
    return {
        **danube,
        "encode": sink.encode,
        "guarantee": sink.guarantee,
        **({"topic": sink.topic} if sink.topic else {}),
        **({"schemaSubject": sink.schema_subject} if sink.schema_subject else {}),
        **storage_options(sink.options),
    }


def write_topic(
    frame: "DataFrame", producer: str, number: int, options: Mapping[str, str], *, ordered: bool
) -> Written:
    """Append a batch to a topic, under numbers that a repeat has again."""
    watched, count = counted(frame)
    numbered = {"producer": producer, "epoch": str(number)}
    numbered["order"] = "input" if ordered else "sorted"
    writer = watched.write.format("danube").mode("append")
    writer.options(**{**numbered, **options}).save()
    return Written(rows=count())
