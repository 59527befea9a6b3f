"""What a session sets, and what a promise about its rows makes of it."""

import pytest

from pydanube.errors import InvalidRequest
from pydanube.spark import session
from pydanube.spark.session_settings import BYTES_PER_BATCH, ROWS_PER_BATCH, promised_rows

MIB = 2**20


@pytest.mark.parametrize(
    ("row_bytes_max", "rows"),
    [(1, 4000), (16 * 1024, 4000), (64 * 1024, 1024), (MIB, 64), (64 * MIB, 1), (2**40, 1)],
)
def test_batches_of_rows_that_are_no_larger_hold_64_mib_at_most(row_bytes_max, rows):
    settings = promised_rows(row_bytes_max)
    assert settings[ROWS_PER_BATCH] == str(rows)
    assert settings[BYTES_PER_BATCH] == "2147483647", "nobody has to measure them"
    assert rows == 1 or rows * row_bytes_max <= 64 * MIB


@pytest.mark.parametrize("promise", ["small", "-1", 0, "16 kilos"])
def test_a_promise_that_is_no_size_is_refused_before_spark_starts(promise):
    with pytest.raises(InvalidRequest, match="is no size"):
        session("orders", row_bytes_max=promise)
