"""The parts of the Raft core, one by one; how they play together is shown by transcripts."""

import pytest

from pydanube.errors import Conflict, InvalidRequest, NotFound, Overloaded
from pydanube.metadata.raft.core import Raft
from pydanube.metadata.raft.entries import EntryKind, LogEntry, Snapshot, founded
from pydanube.metadata.raft.errors import NotLeader
from pydanube.metadata.raft.log import RaftLog
from pydanube.metadata.raft.membership import MEMBERS_MAX, Membership, voters_apart
from pydanube.metadata.raft.progress import Phase, Progress
from pydanube.metadata.raft.quorum import agreed
from pydanube.metadata.raft.reads import Reads
from pydanube.metadata.raft.settings import RaftSettings

THREE = Membership({1: "a", 2: "b", 3: "c"}, {})


def entry(index: int, term: int, data: bytes = b"") -> LogEntry:
    return LogEntry(index, term, EntryKind.COMMAND, data)


def log_of(*terms: int) -> RaftLog:
    log = RaftLog(founded(THREE, b""))
    log.append([entry(index, term) for index, term in enumerate(terms, start=2)])
    return log


def alone(settings: RaftSettings | None = None) -> Raft:
    raft = Raft(1, settings or RaftSettings(), founded(Membership({1: "a"}, {}), b""), lambda _: 0)
    raft.campaign()
    raft.advance(raft.ready())
    return raft


def test_a_majority_is_more_than_half() -> None:
    assert [Membership(dict.fromkeys(range(1, n + 1), "x"), {}).quorum for n in range(1, 6)] == [
        1, 2, 2, 3, 3
    ]  # fmt: skip
    assert THREE.is_quorum([1, 2])
    assert not THREE.is_quorum([1, 1, 9])


def test_members_are_added_as_learners_promoted_and_removed() -> None:
    more = THREE.with_member(4, "d")
    assert more.learners == {4: "d"}
    assert voters_apart(THREE, more.with_voter(4)) == 1
    assert more.with_voter(4).without(4) == THREE
    assert THREE.with_member(2, "new").voters[2] == "new"
    assert THREE.with_voter(1) is THREE


def test_impossible_members_are_refused() -> None:
    with pytest.raises(NotFound):
        THREE.with_voter(9)
    with pytest.raises(NotFound):
        THREE.without(9)
    with pytest.raises(Conflict, match="last voter"):
        Membership({1: "a"}, {}).without(1)
    with pytest.raises(InvalidRequest):
        THREE.with_member(0, "x")
    full = Membership(dict.fromkeys(range(1, MEMBERS_MAX + 1), "x"), {})
    with pytest.raises(Conflict, match="remove one first"):
        full.with_member(1_000, "x")


def test_what_is_agreed_is_what_a_majority_has() -> None:
    assert agreed({1: 5, 2: 3, 3: 1}, [1, 2, 3]) == 3
    assert agreed({1: 5, 2: 3}, [1, 2, 3, 4]) == 0
    assert agreed({1: 5, 9: 7}, [1]) == 5
    assert agreed({}, []) == 0


def test_entries_that_differ_are_replaced_and_equal_ones_left_alone() -> None:
    log = log_of(1, 1, 2)
    assert log.merge(2, 1, [entry(3, 1)]) == 3
    assert log.last_index == 4, "an old message cuts nothing"
    assert log.merge(3, 1, [entry(4, 3), entry(5, 3)]) == 5
    assert [log.term_at(index) for index in range(1, 6)] == [1, 1, 1, 3, 3]
    assert log.merge(9, 3, []) is None
    assert log.merge(4, 2, []) is None


def test_a_committed_entry_is_never_replaced() -> None:
    log = log_of(1, 1)
    log.commit_to(3)
    with pytest.raises(AssertionError, match="committed"):
        log.merge(2, 1, [entry(3, 2)])


def test_what_was_replaced_meanwhile_is_not_taken_for_stored() -> None:
    log = log_of(1, 1)
    log.merge(2, 1, [entry(3, 2)])
    log.stored_to(3, 1)
    assert log.stable_index == 1
    log.stored_to(3, 2)
    assert log.stable_index == 3


def test_a_cut_log_keeps_its_last_entries_and_its_members() -> None:
    log = log_of(1, 1, 1, 1)
    log.stored_to(5, 1)
    log.commit_to(4)
    log.applied_to(4)
    log.cut(Snapshot(4, 1, THREE, b"s"), keep_from=4)
    assert (log.base_index, log.term_at(3), log.term_at(2), log.last_index) == (3, 1, None, 5)
    assert log.membership == THREE


def test_entries_are_sliced_by_size_but_never_to_nothing() -> None:
    log = log_of(1, 1, 1)
    assert len(log.entries_from(2, 1)) == 1
    assert len(log.entries_from(2, 2 * entry(1, 1).size)) == 2
    assert log.entries_from(5, 1) == ()


def test_a_follower_is_probed_then_trusted_until_it_refuses() -> None:
    progress = Progress(RaftSettings(in_flight_messages_max=2), 10)
    progress.sent(10, 1)
    assert progress.is_paused
    assert progress.refused(9, 4)
    assert (progress.next, progress.is_paused) == (5, False)
    assert not progress.refused(9, 3), "an answer to an earlier probe"
    assert progress.accepted(4)
    assert (progress.phase, progress.next) == (Phase.REPLICATE, 5)
    progress.sent(5, 1)
    progress.sent(6, 1)
    assert progress.is_paused
    progress.accepted(5)
    assert not progress.is_paused
    assert not progress.refused(4, 4), "it has been there already"
    assert progress.refused(6, 5)
    assert (progress.phase, progress.next) == (Phase.PROBE, 6)


def test_a_snapshot_that_nobody_answers_is_taken_for_lost() -> None:
    progress = Progress(RaftSettings(snapshot_ticks=2), 10)
    progress.sent_snapshot(20)
    progress.tick()
    assert progress.is_paused
    progress.tick()
    assert (progress.phase, progress.is_paused) == (Phase.PROBE, False)


def test_a_read_waits_for_a_round_that_began_after_it() -> None:
    reads = Reads()
    reads.round = 3
    reads.heard(2, 3)
    reads.add(7, committed=5)
    assert (reads.wants_round, reads.next_round(), reads.heard_by(4)) == (True, 4, [])
    reads.round = 4
    reads.heard(2, 4)
    assert reads.heard_by(4) == [2]
    assert [(read.context, read.index) for read in reads.take(4)] == [(7, 5)]


def test_only_the_leader_takes_proposals_and_only_so_many() -> None:
    follower = Raft(1, RaftSettings(), founded(THREE, b""), lambda _: 0)
    for refused in (lambda: follower.propose(b""), lambda: follower.read_index(1)):
        with pytest.raises(NotLeader):
            refused()
    raft = alone(RaftSettings(uncommitted_bytes_max=200, reads_max=1))
    raft.propose(b"x" * 150)
    with pytest.raises(Overloaded):
        raft.propose(b"x" * 150)
    raft.read_index(1)
    with pytest.raises(Overloaded):
        raft.read_index(2)


def test_messages_beyond_the_limit_are_lost_and_no_more() -> None:
    raft = Raft(1, RaftSettings(messages_max=1), founded(THREE, b""), lambda _: 0)
    raft.campaign(forced=True)
    ready = raft.ready()
    assert len(ready.send_first) + len(ready.send_after) == 1


def test_a_message_for_another_node_is_a_bug_of_the_caller() -> None:
    raft = Raft(1, RaftSettings(), founded(THREE, b""), lambda _: 0)
    other = Raft(2, RaftSettings(), founded(THREE, b""), lambda _: 0)
    other.campaign(forced=True)
    to_three = [message for message in other.ready().send_after if message.to == 3]
    with pytest.raises(AssertionError, match="came to 1"):
        raft.step(to_three[0])
