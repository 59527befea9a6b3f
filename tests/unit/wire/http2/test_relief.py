"""Who is parted with when all connections together hold too much."""

import pytest

from pydanube.wire.http2.limits import plan_relief


@pytest.mark.parametrize(
    ("held", "bytes_max", "leaving"),
    [
        ([], 10, []),
        ([3, 3, 4], 10, []),
        ([3, 3, 5], 10, [2]),
        ([9, 1, 9, 1], 10, [0, 2]),
        ([9, 1, 9, 1], 12, [0]),
        ([100], 10, [0]),
    ],
)
def test_those_who_hold_most_leave_until_the_others_fit(
    held: list[int], bytes_max: int, leaving: list[int]
) -> None:
    assert plan_relief(held, bytes_max) == leaving
