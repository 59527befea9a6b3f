"""Which deliveries may still be settled, by the marks they bear."""

from pydanube.subscriptions.marks import Marks


def test_a_life_knows_its_own_marks_and_no_others() -> None:
    marks, other = Marks("1f-18c"), Marks("1f-18d")
    assert marks.are(marks.current)
    assert not marks.are(other.current)
    for foreign in ("", "1f", "1f-18", "1f-18c0", "x1f-18c"):
        assert not marks.are(foreign), foreign


def test_a_move_ends_what_was_delivered_before_it() -> None:
    marks = Marks("1f-18c")
    before = marks.current
    marks.move(5)
    first = marks.current
    assert not marks.are(before)
    assert marks.are(first)
    marks.move(5)
    assert not marks.are(first), "two moves within a millisecond are two"
    assert marks.are(marks.current)


def test_after_a_restart_the_marks_of_earlier_moves_count_until_the_next() -> None:
    before = Marks("1f-18c")
    before.move(5)
    marks = Marks("1f-18c")
    assert marks.are(before.current)
    marks.move(9)
    assert not marks.are(before.current)
