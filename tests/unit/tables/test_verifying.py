"""What is wrong with a table is found, and named by offset."""

from collections.abc import Sequence

import pyarrow as pa

from pydanube.tables.state import Position
from pydanube.tables.verifying import verify

POSITIONS = {"/d/t": Position("a", 10)}


def places(offsets: Sequence[int]) -> pa.Table:
    return pa.table(
        {
            "partition": pa.array([0] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
        }
    )


def test_a_table_with_each_offset_once_is_exact() -> None:
    verdict = verify("t", POSITIONS, {}, places([*range(7), 8, 9]), places([7]), may_lack=False)
    assert verdict.is_exact
    assert (verdict.rows, verdict.dead_letters, verdict.expected) == (9, 1, 10)


def test_everything_that_is_wrong_is_named() -> None:
    held = places([0, 1, 1, 4, 9, 12])
    (finding,) = verify("t", POSITIONS, {}, held, places([4, 8]), may_lack=False).findings
    assert finding.missing == ["2-3", "5-7"]
    assert finding.repeated == ["1"]
    assert finding.beyond == ["12"]
    assert finding.in_both == ["4"]


def test_a_start_and_a_key_leave_offsets_out() -> None:
    assert verify("t", POSITIONS, {"/d/t": 8}, places([8, 9]), places([]), may_lack=False).is_exact
    assert verify("t", POSITIONS, {}, places([3]), places([]), may_lack=True).is_exact
    assert not verify("t", POSITIONS, {}, places([3]), places([]), may_lack=False).is_exact
