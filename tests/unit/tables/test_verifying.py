"""What is wrong with a table is found, and named by offset."""

from collections.abc import Sequence

import pyarrow as pa

from pydanube.tables.verifying import Finding, Part, PartFindings, check_places, conclude

WHOLE = Part(low=0, high=2**62, start=0, next=10)


def offsets(*numbers: int) -> pa.Array:
    return pa.array(numbers, pa.int64())


def look(
    held: Sequence[int], letters: Sequence[int] = (), part: Part = WHOLE, may_lack: bool = False
) -> PartFindings:
    return check_places(part, offsets(*held), offsets(*letters), may_lack=may_lack)


def verdict(*parts: PartFindings, earliest: int = 0) -> Finding | None:
    return conclude("/d/t", parts, earliest=earliest)


def test_a_table_with_each_offset_once_is_exact() -> None:
    found = look([*range(7), 8, 9], [7])
    assert (found.rows, found.dead_letters) == (9, 1)
    assert verdict(found) is None


def test_everything_that_is_wrong_is_named() -> None:
    finding = verdict(look([0, 1, 1, 4, 9, 12], [4, 8]))
    assert finding is not None
    assert finding.missing == ["2-3", "5-7"]
    assert finding.repeated == ["1"]
    assert finding.beyond == ["12"]
    assert finding.in_both == ["4"]


def test_a_start_and_a_key_leave_offsets_out() -> None:
    late = Part(low=0, high=2**62, start=8, next=10)
    assert verdict(look([8, 9], part=late)) is None
    assert verdict(look([3], may_lack=True)) is None
    assert verdict(look([3])) is not None


def test_parts_are_joined_where_they_meet() -> None:
    low = look([0, 1], part=Part(low=0, high=5, start=0, next=10))
    high = look([8, 9], part=Part(low=5, high=2**62, start=0, next=10))
    finding = verdict(low, high)
    assert finding is not None
    assert finding.missing == ["2-7"]


def test_what_was_gone_when_the_table_began_is_not_missing() -> None:
    found = look([4, 5, 7, 8, 9])
    assert verdict(found, earliest=3) is not None, "offset 3 was there, or still is"
    finding = verdict(found, earliest=4)
    assert finding is not None
    assert finding.missing == ["6"]
    assert verdict(look([*range(4, 10)]), earliest=8) is None


def test_trouble_is_a_finding() -> None:
    finding = conclude("/d/t", [look(range(10))], earliest=0, trouble="it is another topic")
    assert finding is not None
    assert finding.trouble == "it is another topic"
