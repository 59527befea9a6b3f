"""A bounded part of history through the steps of a flow, into a new topic or table."""

from typing import TYPE_CHECKING

from msgspec import Struct

from pydanube.errors import AlreadyExists, InvalidRequest
from pydanube.pipelines.definitions import PipelineDefinition
from pydanube.pipelines.frames import FlowFrames, look_up, version_of
from pydanube.pipelines.lake_opening import beside
from pydanube.pipelines.lakes import BatchId
from pydanube.pipelines.runner import chosen_flows
from pydanube.pipelines.writing import write_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WORDS = ("earliest", "latest")


class Replayed(Struct, frozen=True, kw_only=True):
    """What a replay came to."""

    flow: str
    into: str
    rows: int


def replay(
    definition: PipelineDefinition,
    spark: "SparkSession",
    flow: str,
    *,
    start: str = "earliest",
    end: str = "latest",
    into: str,
) -> Replayed:
    """Apply a flow's steps to a range of its topics, as one batch, into something new.

    The same range into the same topic again adds nothing. Rows that expectations reject are left
    out: the flow itself has sent them to the dead letters.
    """
    (chosen,) = chosen_flows(definition, flow)
    if into in (chosen.sink.topic, chosen.sink.path):
        raise InvalidRequest(f"{into} is the live sink of {chosen.name}; replay into a new one")
    frames = FlowFrames(chosen, definition.danube, definition.parameters)
    sources = {}
    for name, source in chosen.sources.items():
        if source.mode == "static":
            sources[name] = look_up(spark, source, version_of(source))
            continue
        options = frames.options_of(name)
        for option in ("subscription", "startingOffsets", "startingTimestamp"):
            options.pop(option, None)
        allowed = {k: v for k, v in options.items() if "PerTrigger" not in k}
        allowed |= _boundary("starting", start) | _boundary("ending", end)
        sources[name] = spark.read.format("danube").options(**allowed).load()
    frame = frames.shape(spark, sources).frames[chosen.sink.from_]
    job = f"replay/{chosen.name}/{start}/{end}"
    if into.startswith("/") and into.count("/") == 2 and chosen.sink.format == "danube":
        options = {**definition.danube.options(), "topic": into, "encode": chosen.sink.encode}
        rows = write_topic(frame, job, 0, options, chosen.sink.options, ordered=False).rows
    else:
        lake = beside(chosen.sink, into)
        if lake.last_batch(job) is not None:
            raise AlreadyExists(f"{into} holds this replay already")
        table = frame.toArrow()
        batch = BatchId(flow=job, query="replay", number=0)
        lake.write(table, batch, partition_by=chosen.sink.partition_by)
        rows = table.num_rows
    return Replayed(flow=chosen.name, into=into, rows=rows)


def _boundary(side: str, text: str) -> dict[str, str]:
    if text in _WORDS or text.startswith("{"):
        return {f"{side}Offsets": text}
    return {f"{side}Timestamp": text}
