"""Filters that the source applies itself."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from pydanube.spark.source.conditions import (
    Condition,
    clip,
    expression_of,
    holds_for,
    is_applied,
    time_bounds,
)
from pydanube.spark.source.rows import Place

SCHEMA = pa.schema(
    [
        ("topic", pa.utf8()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("publish_time", pa.timestamp("us", "UTC")),
        ("routing_key", pa.utf8()),
    ]
)


def test_offsets_are_clipped():
    assert clip([Condition("offset", ">=", 5), Condition("offset", "<", 9)], 0, 100) == (5, 9)
    assert clip([Condition("offset", ">", 5), Condition("offset", "<=", 9)], 0, 100) == (6, 10)
    assert clip([Condition("offset", "=", 7)], 0, 100) == (7, 8)
    assert clip([Condition("offset", "in", (3, 60))], 0, 50) == (3, 50)
    assert clip([Condition("offset", "in", ())], 0, 50) == (50, 50)
    low, high = clip([Condition("offset", ">", 80), Condition("offset", "<", 9)], 0, 100)
    assert low == high


def test_topics_that_hold_nothing_are_left_out():
    place = Place.of("/default/orders-part-3")
    assert holds_for([Condition("partition", "=", 3)], place)
    assert not holds_for([Condition("partition", ">", 3)], place)
    assert not holds_for([Condition("topic", "in", ("/default/x",))], place)
    assert holds_for([Condition("topic", "set")], place)


def test_rows_are_filtered_exactly():
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC)
    rows = pa.record_batch(
        [
            pa.repeat("/default/orders", 3),
            pa.array([0, 0, 0], pa.int32()),
            pa.array([1, 2, 3]),
            pa.array([noon, noon, datetime(2026, 11, 15, 13, tzinfo=UTC)], SCHEMA.field(3).type),
            pa.array(["eu-1", None, "us-1"]),
        ],
        schema=SCHEMA,
    )

    def kept(*conditions):
        return rows.filter(expression_of(conditions, SCHEMA)).column("offset").to_pylist()

    assert kept(Condition("offset", "in", (1, 3))) == [1, 3]
    assert kept(Condition("publish_time", "=", noon)) == [1, 2]
    assert kept(Condition("routing_key", "prefix", "eu")) == [1]
    assert kept(Condition("routing_key", "set")) == [1, 3]
    assert kept(Condition("routing_key", "in", ("us-1",)), Condition("offset", ">", 1)) == [3]
    assert expression_of([], SCHEMA) is None


def test_times_bound_what_is_read():
    low, high = (datetime.fromtimestamp(s, UTC) for s in (10, 20))
    assert time_bounds([Condition("publish_time", ">=", low)]) == (10_000, None)
    assert time_bounds([Condition("publish_time", "<", high)]) == (None, 20_001)
    assert time_bounds([Condition("publish_time", "in", (high, low))]) == (10_000, 20_001)


@pytest.mark.parametrize(
    "condition",
    [
        Condition("payload", "=", b"x"),
        Condition("routing_key", "<", "x"),
        Condition("offset", "prefix", "1"),
    ],
)
def test_what_is_not_applied_exactly_stays_with_spark(condition):
    assert not is_applied(condition)
