"""Laws of the Raft log: whatever a leader sends, in whatever order, logs agree where they match."""

from hypothesis import given
from hypothesis import strategies as st

from pydanube.metadata.raft.entries import EntryKind, LogEntry, founded
from pydanube.metadata.raft.log import RaftLog
from pydanube.metadata.raft.membership import Membership
from pydanube.metadata.raft.quorum import agreed

terms = st.lists(st.integers(1, 4), max_size=8).map(sorted)


def log_of(log_terms: list[int]) -> RaftLog:
    log = RaftLog(founded(Membership({1: "a"}, {}), b""))
    log.append(entries_of(log_terms))
    return log


def entries_of(log_terms: list[int]) -> list[LogEntry]:
    return [
        LogEntry(index, term, EntryKind.COMMAND, b"")
        for index, term in enumerate(log_terms, start=2)
    ]


@given(terms, terms, st.integers(0, 8), st.integers(0, 8))
def test_after_a_merge_the_logs_are_equal_up_to_where_it_says(
    mine: list[int], leaders: list[int], start: int, count: int
) -> None:
    log, leader = log_of(mine), log_of(leaders)
    start = min(start, len(leaders))
    sent = entries_of(leaders)[start : start + count]
    previous = start + 1
    match = log.merge(previous, leader.term_at(previous) or 0, sent)
    if match is None:
        assert log.term_at(previous) != leader.term_at(previous)
        assert log.last_index == len(mine) + 1, "a refusal changes nothing"
    else:
        assert match == previous + len(sent)
        assert all(log.term_at(one.index) == one.term for one in sent)


@given(terms, terms)
def test_probing_with_hints_finds_where_the_logs_agree(mine: list[int], leaders: list[int]) -> None:
    log, leader = log_of(mine), log_of(leaders)
    place = leader.last_index
    for probes in range(20):
        if log.merge(place, leader.term_at(place) or 0, []) is not None:
            assert probes <= 5, "a hint skips a whole term"
            return
        hint = log.conflict_hint(place, leader.term_at(place) or 0)
        place = min(place - 1, leader.conflict_hint(*hint)[0])
    raise AssertionError("they agree on the snapshot at least")


@given(
    st.dictionaries(st.integers(1, 7), st.integers(0, 20)), st.sets(st.integers(1, 7), min_size=1)
)
def test_what_is_agreed_is_held_by_a_majority_and_nothing_higher_is(
    matches: dict[int, int], voters: set[int]
) -> None:
    index = agreed(matches, voters)
    majority = len(voters) // 2 + 1
    assert sum(matches.get(voter, 0) >= index for voter in voters) >= majority
    assert sum(matches.get(voter, 0) >= index + 1 for voter in voters) < majority
