from pydanube.dispatch.undelivered import Undelivered
from pydanube.model.ids import Offset
from pydanube.model.progress import Progress


def test_after_a_restart_only_what_lies_between_settled_ranges_is_left() -> None:
    left = Undelivered(Progress(Offset(5), ((7, 9), (12, 13)), ((9, 10, 2), (15, 16, 1))))
    assert left.take(0, 20) == [
        (5, 7, 0),
        (9, 10, 2),
        (10, 12, 0),
        (13, 15, 0),
        (15, 16, 1),
        (16, 20, 0),
    ]
    assert left.position == 20


def test_runs_are_delivered_from_the_first_on_as_far_as_there_are_messages() -> None:
    left = Undelivered(Progress(Offset(0), ((2, 4),)))
    assert left.first(1) == (0, 1, 0)
    left.deliver(1)
    assert left.first(100) == (1, 2, 0)
    left.deliver(2)
    assert left.position == 4
    assert left.first(100) == (4, 100, 0)
    left.deliver(50)
    assert left.position == 50


def test_what_is_taken_from_ahead_leaves_a_hole() -> None:
    left = Undelivered(Progress(Offset(0)))
    assert left.take(5, 8) == [(5, 8, 0)]
    assert left.first(100) == (0, 5, 0)
    left.deliver(5)
    assert left.position == 8
    assert left.take(0, 8) == []
