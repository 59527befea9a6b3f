"""Expectations: which rows of a batch break which, how many, and what becomes of them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from pydanube.pipelines.definitions import Expectation, Step
from pydanube.pipelines.errors import ExpectationFailed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MARK = "__danube_broken_"
_REMOVING = ("drop", "dead_letter")
SET_BY_US = (
    "x-original-topic",
    "x-original-topic-offset",
    "x-original-topic-partition",
    "x-failure-reason",
    "x-pipeline",
    "x-step",
)


class Judged(Struct, frozen=True, kw_only=True):
    """A batch behind an expectation step."""

    good: "DataFrame"
    marked: "DataFrame"
    """All rows with their marks; kept in memory until it is let go."""
    counts: Mapping[tuple[str, str], int]
    """Broken rows by expectation and action."""
    rejected: int
    """Rows for the dead letters."""


def broken(expectation: Expectation) -> "Column":
    """Return whether a row breaks an expectation. Null counts as broken."""
    from pyspark.sql.functions import coalesce, expr, lit

    return ~coalesce(expr(expectation.check), lit(False))


def kept(frame: "DataFrame", expectations: Sequence[Expectation]) -> "DataFrame":
    """Return a frame, or a stream, without the rows that expectations take out of it.

    A row that breaks an expectation whose rule is `fail` fails the query.
    """
    from pyspark.sql.functions import assert_true, coalesce, lit

    for each in expectations:
        if each.otherwise in _REMOVING:
            frame = frame.where(~broken(each))
        elif each.otherwise == "fail":
            words = lit(f"a row breaks the expectation {each.name}: {each.check}")
            holds = coalesce(assert_true(~broken(each), words), lit(None).cast("boolean"))
            frame = frame.where(holds.isNull())
    return frame


def judge(frame: "DataFrame", step: Step, where: str) -> Judged:
    """Look at every row of a batch once, count what is broken, and part the good from the bad.

    ExpectationFailed says how many rows break a rule that fails; then nothing has been written.
    """
    from pyspark.sql import Observation
    from pyspark.sql.functions import col, count_if

    expectations = step.expect or ()
    marks = [f"{_MARK}{number}" for number in range(len(expectations))]
    marked = frame.select(
        "*", *(broken(each).alias(mark) for each, mark in zip(expectations, marks, strict=True))
    ).persist()
    dead = [
        m for m, each in zip(marks, expectations, strict=True) if each.otherwise == "dead_letter"
    ]
    gone = [m for m, each in zip(marks, expectations, strict=True) if each.otherwise in _REMOVING]
    observation = Observation()
    counted = marked.observe(
        observation,
        count_if(_any(dead)).alias("rejected"),
        *(count_if(col(mark)).alias(mark) for mark in marks),
    )
    # One pass: it fills the cache, and counts.
    counted.write.format("noop").mode("overwrite").save()
    found = observation.get
    counts: dict[tuple[str, str], int] = {
        (each.name, each.otherwise): int(found[mark])
        for each, mark in zip(expectations, marks, strict=True)
    }
    for (name, action), number in counts.items():
        if action == "fail" and number:
            marked.unpersist()
            raise ExpectationFailed(
                f"{where}, step {step.name}: {number} rows break the expectation {name}, whose "
                "rule is to fail; nothing of the batch was written. Mend the rows, or give the "
                "expectation otherwise: dead_letter"
            )
    return Judged(
        good=marked.where(~_any(gone)).drop(*marks),
        marked=marked,
        counts=counts,
        rejected=int(found["rejected"]),
    )


def dead_letters(judged: Judged, step: Step, pipeline: str) -> "DataFrame":
    """Return the rejected rows as messages that say where they came from and why."""
    from pyspark.sql.functions import array as array_of
    from pyspark.sql.functions import (
        array_compact,
        array_join,
        coalesce,
        col,
        create_map,
        lit,
        map_concat,
        map_filter,
        struct,
        to_json,
        when,
    )

    expectations = step.expect or ()
    marks = {f"{_MARK}{n}": each for n, each in enumerate(expectations)}
    dead = [mark for mark, each in marks.items() if each.otherwise == "dead_letter"]
    reasons = [when(col(mark), lit(marks[mark].name)) for mark in dead]
    rows = judged.marked.where(_any(dead))
    columns = set(rows.columns)
    named: list[Column] = [lit("x-pipeline"), lit(pipeline), lit("x-step"), lit(step.name)]
    named += [lit("x-failure-reason"), array_join(array_compact(array_of(*reasons)), ",")]
    for name, attribute in (
        ("topic", "x-original-topic"),
        ("partition", "x-original-topic-partition"),
        ("offset", "x-original-topic-offset"),
    ):
        if name in columns:
            named += [lit(attribute), coalesce(col(name).cast("string"), lit(""))]
    attributes = create_map(*named)
    if "attributes" in columns:
        own = map_filter(
            coalesce(col("attributes"), create_map().cast("map<string,string>")),
            lambda key, _: ~key.isin(*SET_BY_US),
        )
        attributes = map_concat(own, attributes)
    others = [name for name in rows.columns if name not in marks]
    payload = col("payload") if "payload" in columns else to_json(struct(*others))
    kept_columns = [
        (col(name) if name in columns else lit(None)).cast(kind).alias(name)
        for name, kind in (
            ("routing_key", "string"),
            ("schema_id", "bigint"),
            ("schema_version", "int"),
        )
    ]
    return rows.select(
        payload.cast("binary").alias("payload"), attributes.alias("attributes"), *kept_columns
    )


def _any(marks: Sequence[str]) -> "Column":
    from pyspark.sql.functions import col, lit

    found = lit(False)
    for mark in marks:
        found = found | col(mark)
    return found
