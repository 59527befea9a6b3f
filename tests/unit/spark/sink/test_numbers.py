import pyarrow as pa
import pytest

from pydanube.spark.sink.publishing import Numbers


def with_gaps(*sequences):
    return Numbers.given(pa.array(sequences, pa.int64()))


@pytest.mark.parametrize(
    ("numbers", "stored", "left"),
    [
        (Numbers(10, 19), 10, (11, 19, 9)),
        (Numbers(10, 19), 18, (19, 19, 1)),
        (Numbers(10, 19), 3, (10, 19, 10)),
        (with_gaps(3, 7, 8, 20), 3, (7, 20, 3)),
        (with_gaps(3, 7, 8, 20), 6, (7, 20, 3)),
        (with_gaps(3, 7, 8, 20), 19, (20, 20, 1)),
    ],
)
def test_what_lies_above_the_stored_rows_is_left(numbers, stored, left):
    above = numbers.above(stored)
    assert (above.first, above.last, len(above)) == left


def test_numbers_are_counted():
    assert len(Numbers(0, 0)) == 1
    assert len(Numbers(2**32, 2**32 + 4)) == 5
    assert len(with_gaps(1, 5, 9)) == 3
