"""A batch is let in exactly if each of its rows keeps the limits.

Batches are judged by bounds that few calls tell, and row by row only when those do not suffice.
"""

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from pydanube.errors import InvalidRequest
from pydanube.model.batch import SCHEMA
from pydanube.wire.flight.rows import check_rows

LENGTHS = st.sampled_from([0, 1, 400, 1_024, 1_025, 15_000, 16_000, 32_000, 33_000])
COUNTS = st.sampled_from([0, 1, 2, 3, 63, 64, 65])
BYTES_OF_E = len("é".encode())
"""Of keys characters are counted, and bytes weighed."""
ROWS = st.tuples(LENGTHS, st.none() | LENGTHS, st.none() | COUNTS, LENGTHS, LENGTHS)


@given(st.lists(ROWS, min_size=1, max_size=6), st.integers(0, 5))
# The longest of everything together would be too much, and no row has it.
@example([(16_000, None, 0, 0, 0), (1, 1_024, 1, 1, 15_000), (0, None, 64, 0, 0)], 0)
@example([(0, None, 1, 0, 33_000), (0, None, 1, 0, 0)], 1)
# A row is too much by how many attributes it has, or by a key that alone is not.
@example([(0, None, 64, 400, 400)], 0)
@example([(32_000, 1_024, None, 0, 0)], 0)
@example([(31_000, 1_024, None, 0, 0)], 0)
def test_a_batch_is_let_in_if_each_of_its_rows_keeps_the_limits(rows, first):
    first = min(first, len(rows) - 1)
    assert is_let_in(batch_of(rows).slice(first)) == all(map(keeps_the_limits, rows[first:]))


def keeps_the_limits(row) -> bool:
    name, routing_key, attributes, key, value = row
    count = attributes or 0
    weight = name + BYTES_OF_E * (routing_key or 0) + count * (key + value + 16) + 128
    return (routing_key or 0) <= 1_024 and count <= 64 and weight <= 32 * 1024


def batch_of(rows) -> pa.RecordBatch:
    columns = {
        "publish_time": [1] * len(rows),
        "producer_name": ["n" * name for name, *_ in rows],
        "routing_key": [None if key is None else "é" * key for _, key, *_ in rows],
        "attributes": [
            None if count is None else [("k" * key, "v" * value)] * count
            for *_, count, key, value in rows
        ],
        "schema_id": [None] * len(rows),
        "schema_version": [None] * len(rows),
        "payload": [b""] * len(rows),
    }
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in SCHEMA], SCHEMA)


def is_let_in(batch: pa.RecordBatch) -> bool:
    try:
        check_rows(batch)
    except InvalidRequest:
        return False
    return True
