"""Attributes that a message does not have: null in a batch, an empty map for readers."""

from typing import Any

import pyarrow as pa
import pytest

from pydanube.model.attributes import empty_for_none, none_for_empty

KIND = pa.map_(pa.utf8(), pa.utf8())
SOME = [("a", "1"), ("b", "2")]

COLUMNS = {
    "no rows": [],
    "all null": [None, None, None],
    "all empty": [[], [], []],
    "all given": [SOME, [("c", "3")], SOME],
    "mixed": [None, SOME, [], None, [("c", "3")], []],
    "null first": [None, SOME],
    "empty last": [SOME, []],
}


def slices(rows: list[Any]) -> list[pa.MapArray]:
    whole = pa.array(rows, KIND)
    return [
        whole.slice(first, count)
        for first in range(len(rows) + 1)
        for count in range(len(rows) - first + 1)
    ]


@pytest.mark.parametrize("rows", COLUMNS.values(), ids=COLUMNS)
def test_readers_find_a_map_everywhere(rows: list[Any]) -> None:
    for column in slices(rows):
        found = empty_for_none(column)
        found.validate(full=True)
        assert found.type == KIND
        assert found.null_count == 0
        assert found.to_pylist() == [row or [] for row in column.to_pylist()]


@pytest.mark.parametrize("rows", COLUMNS.values(), ids=COLUMNS)
def test_batches_have_null_for_nothing(rows: list[Any]) -> None:
    for column in slices(rows):
        found = none_for_empty(column)
        found.validate(full=True)
        assert found.type == KIND
        assert found.to_pylist() == [row or None for row in column.to_pylist()]
        assert none_for_empty(empty_for_none(found)).equals(found)


def test_what_lies_under_a_null_does_not_show() -> None:
    given = pa.array([SOME, [("c", "3")]], KIND)
    mask = pa.array([False, True])
    hiding = pa.MapArray.from_arrays(given.offsets, given.keys, given.items, KIND, mask=mask)
    assert hiding.to_pylist() == [SOME, None]
    assert empty_for_none(hiding).to_pylist() == [SOME, []]
    assert none_for_empty(hiding).to_pylist() == [SOME, None]
    hidden_alone = hiding.slice(1)
    assert empty_for_none(hidden_alone).to_pylist() == [[]]
    assert none_for_empty(hidden_alone).to_pylist() == [None]
