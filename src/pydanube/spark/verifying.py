"""Compares a topic with its catalogue and its segments, row by row, in Spark's tasks.

Tasks read every row through the data source, which checks footers, page checksums and the offsets
of row groups on the way; what comes out is counted in blocks of offsets, so that a hole or a repeat
is found as the exact range it is.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from pydanube.runtime.blocking import environment
from pydanube.runtime.clock import SystemClock
from pydanube.spark.frames import option_texts
from pydanube.spark.options import DEFAULT_URL, URL_VARIABLE, read_options
from pydanube.spark.source.batch_reader import ReadRange, resolve_range
from pydanube.spark.source.rows import Place
from pydanube.wire.flight.blocking import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOCK_ROWS = 32_768
"""Offsets that are counted together: as many as one of Spark's bitmaps has bits."""
RANGES_MAX = 100

Range = tuple[int, int]
"""[first, next): the second one is not part of it."""


class VerifiedPartition(Struct, frozen=True, kw_only=True):
    """What was found of one physical topic."""

    topic: str
    earliest: int
    frontier: int
    rows: int
    sealed_rows: int
    missing: list[Range]
    """Offsets that nobody has, at most RANGES_MAX ranges."""
    repeated: list[Range]
    """Offsets that came more than once."""
    uncatalogued: list[Range]
    """Offsets that no piece of the broker's plan covers."""

    @property
    def is_whole(self) -> bool:
        """Whether every offset is there once."""
        return not (self.missing or self.repeated or self.uncatalogued)


class Verified(Struct, frozen=True, kw_only=True):
    """What was found of a topic."""

    topic: str
    partitions: list[VerifiedPartition]

    @property
    def is_whole(self) -> bool:
        """Whether every offset of every partition is there once."""
        return all(each.is_whole for each in self.partitions)


def verify(spark: "SparkSession", topic: str, **options: object) -> Verified:
    """Read all of a topic and compare it with what its broker says there is; changes nothing.

    A damaged segment fails the job with an error that names it. `options` are those of the data
    source; with `segmentAccess="direct"` a segment that is not in the store is an error, too.
    """
    given = option_texts({"topic": topic, **options})
    parsed = read_options(
        given,
        streaming=False,
        now_ms=SystemClock().now_ms(),
        default_url=environment(URL_VARIABLE) or DEFAULT_URL,
    )
    found = resolve_range(parsed, ())
    wanted = {name: bounds for name, bounds in found.bounds.items() if bounds[0] < bounds[1]}
    plans = found.topics.segments_between(wanted) if wanted else []
    return Verified(
        topic=topic,
        partitions=[_partition(spark, given, name, found, plans) for name in sorted(found.bounds)],
    )


def _partition(
    spark: "SparkSession",
    options: Mapping[str, str],
    name: str,
    found: ReadRange,
    plans: list[Plan],
) -> VerifiedPartition:
    start, end = found.bounds[name]
    pieces = sorted(
        (piece.from_, piece.to, piece.segment is not None)
        for plan in plans
        for piece in plan.pieces
        if piece.topic == name
    )
    frame = _rows(spark, options, found, name) if start < end else None
    missing, repeated, rows = ([], [], 0) if frame is None else _compare(frame, start, end)
    return VerifiedPartition(
        topic=name,
        earliest=start,
        frontier=end,
        rows=rows,
        sealed_rows=sum(high - low for low, high, sealed in pieces if sealed),
        missing=missing,
        repeated=repeated,
        uncatalogued=uncovered([(low, high) for low, high, _ in pieces], start, end),
    )


def _rows(
    spark: "SparkSession", options: Mapping[str, str], found: ReadRange, name: str
) -> "DataFrame":
    starts = {each: end for each, (_, end) in found.bounds.items()}
    starts[name] = found.bounds[name][0]
    ends = {each: end for each, (_, end) in found.bounds.items()}
    fixed = {
        **{key: text for key, text in options.items() if "Timestamp" not in key},
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }
    fixed.pop("columns", None)  # All of them are read, so that every page's checksum is checked.
    frame = spark.read.format("danube").options(**fixed).load()
    return frame.where(f"partition = {Place.of(name).partition}").selectExpr(
        "offset", "octet_length(payload) AS size"
    )


def _compare(frame: "DataFrame", start: int, end: int) -> tuple[list[Range], list[Range], int]:
    """Return what is missing, what is there more than once, and how many rows there are."""
    from pyspark.sql.functions import expr

    frame = frame.selectExpr("offset", "size", f"offset DIV {BLOCK_ROWS} AS block")
    counted = (
        frame.groupBy("block")
        .agg(
            expr("count(*)").alias("rows"),
            expr("sum(size)").alias("size"),
            # Different offsets, counted without a shuffle of them; bits begin with number 1.
            expr("bitmap_count(bitmap_construct_agg(bitmap_bit_position(offset + 1)))").alias(
                "different"
            ),
        )
        .collect()
    )
    rows = {int(row["block"]): int(row["rows"]) for row in counted}
    different = {int(row["block"]): int(row["different"]) for row in counted}
    suspect = [
        block
        for block in range(start // BLOCK_ROWS, (end - 1) // BLOCK_ROWS + 1)
        if not rows.get(block, 0) == different.get(block, 0) == len(_block(block, start, end))
    ]
    missing: list[Range] = []
    repeated: list[Range] = []
    for block in suspect[:RANGES_MAX]:
        held = frame.where(f"block = {block}").groupBy("offset").count().collect()
        counts = {int(row["offset"]): int(row["count"]) for row in held}
        offsets = _block(block, start, end)
        missing += ranges_of([each for each in offsets if each not in counts])
        repeated += ranges_of([each for each in offsets if counts.get(each, 0) > 1])
    return joined(missing)[:RANGES_MAX], joined(repeated)[:RANGES_MAX], sum(rows.values())


def _block(block: int, start: int, end: int) -> range:
    return range(max(start, block * BLOCK_ROWS), min(end, (block + 1) * BLOCK_ROWS))


def ranges_of(offsets: list[int]) -> list[Range]:
    """Return growing offsets as ranges."""
    return joined([(each, each + 1) for each in offsets])


def joined(ranges: list[Range]) -> list[Range]:
    """Join ranges that touch; they come in order."""
    found: list[Range] = []
    for low, high in ranges:
        if found and found[-1][1] == low:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found


def uncovered(pieces: list[Range], start: int, end: int) -> list[Range]:
    """Return what of [start, end) no piece covers; pieces come in order."""
    found: list[Range] = []
    at = start
    for low, high in pieces:
        if low > at:
            found.append((at, low))
        at = max(at, high)
    if at < end:
        found.append((at, end))
    return found
