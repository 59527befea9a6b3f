from pydanube.model.ids import Offset
from pydanube.model.progress import Progress, ProgressChange
from pydanube.storage.journal.progress import FoldedProgress


def folded(cursor: int, *changes: ProgressChange) -> Progress:
    progress = FoldedProgress(Progress(Offset(cursor)))
    for change in changes:
        progress.apply(change)
    return progress.whole()


def settled(*ranges: tuple[int, int]) -> ProgressChange:
    return ProgressChange(settled=ranges)


def attempts(*ranges: tuple[int, int, int]) -> ProgressChange:
    return ProgressChange(attempts=ranges)


def test_the_cursor_moves_over_settled_ranges_and_no_further() -> None:
    assert folded(5, settled((7, 9))) == Progress(Offset(5), ((7, 9),))
    assert folded(5, settled((7, 9)), settled((5, 7))) == Progress(Offset(9))
    assert folded(5, settled((5, 6)), settled((8, 9))) == Progress(Offset(6), ((8, 9),))


def test_a_change_may_come_twice() -> None:
    change = ProgressChange(settled=((5, 7), (9, 10)), attempts=((7, 9, 2),))
    assert folded(5, change, change) == folded(5, change)
    assert folded(5, change) == Progress(Offset(7), ((9, 10),), ((7, 9, 2),))


def test_what_is_settled_below_the_cursor_changes_nothing() -> None:
    assert folded(5, settled((0, 3))) == Progress(Offset(5))


def test_a_settled_message_has_no_attempts() -> None:
    assert folded(0, attempts((0, 10, 1)), settled((3, 5))) == Progress(
        Offset(0), ((3, 5),), ((0, 3, 1), (5, 10, 1))
    )
    assert folded(0, settled((0, 4)), attempts((2, 6, 1))) == Progress(Offset(4), (), ((4, 6, 1),))


def test_later_attempts_replace_earlier_ones() -> None:
    assert folded(0, attempts((0, 10, 1)), attempts((4, 6, 2))).attempts == (
        (0, 4, 1),
        (4, 6, 2),
        (6, 10, 1),
    )
    assert folded(0, attempts((0, 2, 1)), attempts((2, 4, 1))).attempts == ((0, 4, 1),)
    assert folded(0, attempts((0, 2, 1), (4, 6, 1)), attempts((2, 4, 1))).attempts == ((0, 6, 1),)


def test_a_whole_progress_comes_back_as_it_is() -> None:
    whole = Progress(Offset(3), ((5, 7), (9, 11)), ((3, 4, 1), (7, 9, 5)))
    assert FoldedProgress(whole).whole() == whole
