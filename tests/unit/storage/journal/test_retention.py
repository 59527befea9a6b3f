from pydanube.model.ids import JournalPosition
from pydanube.storage.journal.retention import FileUse, Keeping, Use, plan_deletions

N, E, X = Use.NEEDED, Use.EXPORTED, Use.NONE
FOREVER = Keeping(time_ms=10**9, total_bytes=10**9)
HOUR = Keeping(time_ms=3_600_000, total_bytes=10**9)


def files(*uses: Use) -> list[FileUse]:
    """Files of 100 bytes each, finished one second after the other."""
    return [
        FileUse(start=JournalPosition(n * 100), size=100, finished_ms=n * 1000, use=use)
        for n, use in enumerate(uses)
    ]


def test_files_go_from_the_front_as_long_as_nobody_needs_them() -> None:
    assert plan_deletions(files(X, X, N, X), 450, FOREVER, 0) == [0, 100]


def test_a_needed_file_keeps_every_later_one() -> None:
    greedy = Keeping(time_ms=0, total_bytes=0)
    assert plan_deletions(files(N, X, E), 350, greedy, 10**9) == []


def test_exported_files_stay_until_their_time_is_over() -> None:
    three = files(E, E, E)
    assert plan_deletions(three, 350, HOUR, 3_600_000 - 1) == []
    assert plan_deletions(three, 350, HOUR, 3_600_000) == [0]
    assert plan_deletions(three, 350, HOUR, 3_601_000) == [0, 100]


def test_exported_files_go_early_when_the_journal_has_no_space() -> None:
    def left(total: int) -> int:
        keeping = Keeping(time_ms=10**9, total_bytes=total)
        return 3 - len(plan_deletions(files(E, E, E), 350, keeping, 0))

    assert [left(total) for total in (350, 349, 250, 249, 50, 49, 0)] == [3, 2, 2, 1, 0, 0, 0]


def test_an_exported_file_that_stays_keeps_those_behind_it() -> None:
    assert plan_deletions(files(E, X, X), 350, HOUR, 0) == []


def test_no_files_no_deletions() -> None:
    assert plan_deletions([], 50, FOREVER, 0) == []
