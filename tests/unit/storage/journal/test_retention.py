from pydanube.model.ids import JournalPosition, TopicId
from pydanube.storage.journal.retention import FileUse, plan_deletions


def files(*topics: set[int]) -> list[FileUse]:
    return [
        FileUse(JournalPosition(number * 100), {TopicId(t) for t in used})
        for number, used in enumerate(topics)
    ]


def needed(*topics: int) -> set[TopicId]:
    return {TopicId(t) for t in topics}


def test_files_go_from_the_front_as_long_as_nobody_needs_them() -> None:
    assert plan_deletions(files({1}, {1, 2}, {3}, {1}, {3}), needed(3)) == [0, 100]


def test_a_needed_file_keeps_every_later_one() -> None:
    assert plan_deletions(files({1, 3}, {2}, {2}, {2}), needed(3)) == []


def test_the_newest_file_stays_whatever_it_holds() -> None:
    assert plan_deletions(files({1}), needed()) == []
    assert plan_deletions(files({1}, set(), {1}), needed()) == [0, 100]


def test_no_files_no_deletions() -> None:
    assert plan_deletions([], needed(1)) == []
