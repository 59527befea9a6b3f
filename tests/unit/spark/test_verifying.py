"""Ranges of offsets that are missing, repeated, or in nobody's plan."""

from pydanube.spark.verifying import joined, ranges_of, uncovered


def test_offsets_become_the_ranges_they_are():
    assert ranges_of([]) == []
    assert ranges_of([0]) == [(0, 1)]
    assert ranges_of([0, 1, 2, 5, 7, 8]) == [(0, 3), (5, 6), (7, 9)]


def test_ranges_that_touch_are_one():
    assert joined([(0, 3), (3, 5), (6, 7)]) == [(0, 5), (6, 7)]


def test_what_no_piece_covers_is_named():
    assert uncovered([(0, 5), (5, 9)], 0, 9) == []
    assert uncovered([(1, 5), (6, 9)], 0, 10) == [(0, 1), (5, 6), (9, 10)]
    assert uncovered([(0, 7), (3, 5)], 0, 7) == []
    assert uncovered([], 2, 4) == [(2, 4)]
    assert uncovered([], 4, 4) == []
