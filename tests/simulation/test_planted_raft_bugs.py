"""The Raft worlds are worth something: each of these bugs, planted, breaks a law in one of them.

Each bug names the kind of world it is looked for in: rare bugs need their own weather.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pydanube.metadata.raft.candidate import Candidate
from pydanube.metadata.raft.core import Raft
from pydanube.metadata.raft.entries import LogEntry, Snapshot
from pydanube.metadata.raft.follower import Follower
from pydanube.metadata.raft.leader import Leader
from pydanube.metadata.raft.log import RaftLog
from pydanube.metadata.raft.membership import Membership
from pydanube.metadata.raft.messages import Append, Message
from pydanube.metadata.raft.quorum import agreed
from pydanube.metadata.raft.reads import Reads
from tests.support.raft_machine import Driver
from tests.support.raft_transcript import rewritten
from tests.support.raft_world import Profile, check

pytestmark = pytest.mark.slow

SEEDS_MAX = 400
TRANSCRIPTS = Path(__file__).parent.parent / "scenarios" / "raft"

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass
class Bug:
    plant: Plant | None = None
    profile: Profile = field(default_factory=Profile)


def votes_are_given_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Raft, "_may_vote", lambda self, request: not request.trial or request.term > self.term
    )


def any_log_is_new_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftLog, "is_up_to_date", lambda self, index, term: True)


def old_terms_are_committed_by_count(patch: pytest.MonkeyPatch) -> None:
    commit = Leader._commit

    def careless(self: Leader) -> None:
        log = self._raft.log
        index = agreed(self._matches(), self._raft.membership.voters)
        if index > log.committed:
            log.commit_to(index)
            self._send_to_all(even_empty=True)
        commit(self)

    patch.setattr(Leader, "_commit", careless)


def the_leader_counts_itself_before_it_has_synced(patch: pytest.MonkeyPatch) -> None:
    matches = Leader._matches

    def hasty(self: Leader) -> dict[int, int]:
        return {**matches(self), self._raft.node: self._raft.log.last_index}

    patch.setattr(Leader, "_matches", hasty)


def members_change_before_the_leader_knows_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    check_change = Leader.check_change

    def careless(self: Leader, membership: Membership) -> None:
        first, self._first_index = self._first_index, 0
        try:
            check_change(self, membership)
        finally:
            self._first_index = first

    patch.setattr(Leader, "check_change", careless)


def members_change_twice_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "check_change", lambda self, membership: None)


def members_of_a_cut_entry_stay(patch: pytest.MonkeyPatch) -> None:
    cut_from = RaftLog._cut_from

    def forgetful(self: RaftLog, index: int) -> None:
        memberships = self._memberships
        cut_from(self, index)
        self._memberships = memberships

    patch.setattr(RaftLog, "_cut_from", forgetful)


def conflicts_are_not_cut(patch: pytest.MonkeyPatch) -> None:
    def merge(
        self: RaftLog, previous_index: int, previous_term: int, entries: Sequence[LogEntry]
    ) -> int | None:
        if self.term_at(previous_index) != previous_term:
            return None
        self.append([entry for entry in entries if entry.index > self.last_index])
        return previous_index + len(entries)

    patch.setattr(RaftLog, "merge", merge)


def the_previous_entry_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    merge = RaftLog.merge

    def careless(
        self: RaftLog, previous_index: int, previous_term: int, entries: Sequence[LogEntry]
    ) -> int | None:
        found = self.term_at(previous_index)
        return merge(self, previous_index, found or previous_term, entries)

    patch.setattr(RaftLog, "merge", careless)


def an_old_append_cuts_what_came_after(patch: pytest.MonkeyPatch) -> None:
    merge = RaftLog.merge

    def eager(
        self: RaftLog, previous_index: int, previous_term: int, entries: Sequence[LogEntry]
    ) -> int | None:
        match = merge(self, previous_index, previous_term, entries)
        if match is not None and match < self.last_index:
            self._cut_from(match + 1)
        return match

    patch.setattr(RaftLog, "merge", eager)


def reads_need_no_majority(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reads, "heard_by", lambda self, round_: range(1, 100))


def reads_count_answers_to_earlier_rounds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reads, "heard_by", lambda self, round_: list(self._heard))


def a_new_leader_reads_what_it_thinks_is_committed(patch: pytest.MonkeyPatch) -> None:
    def hasty(self: Leader, context: int) -> None:
        self.reads.add(context, self._raft.log.committed)

    patch.setattr(Leader, "read_index", hasty)


def learners_count_as_voters(patch: pytest.MonkeyPatch) -> None:
    def is_quorum(self: Membership, nodes: Sequence[int]) -> bool:
        return sum(self.address_of(node) is not None for node in set(nodes)) >= self.quorum

    patch.setattr(Membership, "is_quorum", is_quorum)


def learners_count_for_commits(patch: pytest.MonkeyPatch) -> None:
    matches = Leader._matches

    def generous(self: Leader) -> dict[int, int]:
        found = matches(self)
        best = sorted(found.values(), reverse=True)
        return dict(zip(sorted(self._raft.membership.voters), best, strict=False))

    patch.setattr(Leader, "_matches", generous)


def a_snapshot_replaces_a_newer_log(patch: pytest.MonkeyPatch) -> None:
    def install(self: Follower, leader: int, snapshot: Snapshot) -> None:
        log = self._raft.log
        if snapshot.index > log.base_index:
            log.restore(snapshot)
        self._accept(leader, log.committed)

    patch.setattr(Follower, "_install", install)


def messages_of_old_terms_are_heeded(patch: pytest.MonkeyPatch) -> None:
    answer = Raft._answer_outdated

    def heed(self: Raft, message: Message) -> None:
        if isinstance(message, Append) and isinstance(self.role, Follower):
            self.role.step(message)
        else:
            answer(self, message)

    patch.setattr(Raft, "_answer_outdated", heed)


def answers_on_trial_count_for_real(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Candidate, "_is_answer", lambda self, vote: True)


def the_vote_outlives_its_term(patch: pytest.MonkeyPatch) -> None:
    become_follower = Raft.become_follower

    def sticky(self: Raft, term: int, leader: int) -> None:
        vote = self.vote
        become_follower(self, term, leader)
        self.vote = vote

    patch.setattr(Raft, "become_follower", sticky)


def a_follower_commits_what_it_does_not_have_in_common(patch: pytest.MonkeyPatch) -> None:
    def append(self: Follower, message: Append) -> None:
        log = self._raft.log
        log.commit_to(max(log.committed, min(message.committed, log.last_index)))
        original(self, message)

    original = Follower._append
    patch.setattr(Follower, "_append", append)


def the_term_is_forgotten_before_others_hear_it(patch: pytest.MonkeyPatch) -> None:
    divide = Raft._divide_outbox

    def hasty(self: Raft, changed: Any) -> Any:
        first, after = divide(self, changed)
        return (*first, *after), ()

    patch.setattr(Raft, "_divide_outbox", hasty)


def leases_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Raft, "_hears_leader", lambda self: False)


def leaders_without_a_majority_go_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "_reaches_majority", lambda self: True)


def removed_leaders_never_stand_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftLog, "may_lead", lambda self, node: node in self.membership.voters)


SLOW_DISK = Profile(disk_ms=15.0, crashes=3.0, loss=0.0)
UNLUCKY_LEADERS = Profile(
    nodes=5,
    seconds=8.0,
    append_bytes_max=1,
    crashes=0.0,
    crash_at_commit=0.3,
    crash_at_election=0.8,
    clients=2,
    extra=0,
    loss=0.0,
    disk_ms=0.5,
    one_way=0.0,
    pauses=0.0,
    transfers=0.0,
    members=0.0,
    snapshot_entries=1_000,
)
STRAGGLERS = Profile(stragglers=0.1, loss=0.0, snapshot_entries=1_000, transfers=2.0)
MEMBERS = Profile(members=6.0, partitions=4.0, crashes=0.3, one_way=0.0, pauses=0.2, loss=0.0)
LATE_NEWS = Profile(
    nodes=3,
    extra=0,
    pauses=10.0,
    transfers=0.0,
    partitions=1.0,
    one_way=0.0,
    crashes=0.1,
    members=0.0,
    clients=8,
    snapshot_entries=1_000,
)

QUIET = Profile(
    crashes=0.0,
    partitions=0.0,
    one_way=0.0,
    pauses=0.0,
    transfers=0.0,
    members=0.0,
    loss=0.0,
    stragglers=0.0,
    delay_ms=1.0,
    disk_ms=0.5,
    snapshot_entries=1_000,
    extra=0,
)
IMPATIENT = replace(QUIET, nodes=3, impatient=1.0)
HASTY = replace(QUIET, nodes=4, extra=1, hasty=1.0, seconds=6.0)
LEARNERS = replace(QUIET, nodes=3, extra=2, hasty=2.0, partitions=3.0)
ISOLATED = replace(QUIET, isolated=1.0)
STEADY = replace(QUIET, isolated=1.0, is_steady=True, clients=1)
TWO_NODES = Profile(nodes=2, extra=1, members=8.0, crashes=2.0)

BUGS = {
    "votes are given twice": Bug(votes_are_given_twice),
    "any log is new enough": Bug(any_log_is_new_enough),
    "old terms are committed by count": Bug(old_terms_are_committed_by_count, UNLUCKY_LEADERS),
    "the leader counts itself before it has synced": Bug(
        the_leader_counts_itself_before_it_has_synced,
        Profile(nodes=1, extra=0, members=0.0, driver=Driver(applies_before_sync=True)),
    ),
    "conflicts are not cut": Bug(conflicts_are_not_cut),
    "the previous entry is not checked": Bug(the_previous_entry_is_not_checked),
    "an old append cuts what came after": Bug(an_old_append_cuts_what_came_after),
    "reads need no majority": Bug(reads_need_no_majority, LATE_NEWS),
    "reads count answers to earlier rounds": Bug(reads_count_answers_to_earlier_rounds, LATE_NEWS),
    "a new leader reads what it thinks is committed": Bug(
        a_new_leader_reads_what_it_thinks_is_committed
    ),
    "reads are answered from any copy": Bug(None, Profile(driver=Driver(reads_locally=True))),
    "reads are answered before their index is applied": Bug(
        None,
        Profile(
            driver=Driver(reads_before_applied=True), apply_bytes_max=1, clients=6, disk_ms=15.0
        ),
    ),
    "learners count as voters": Bug(learners_count_as_voters, LEARNERS),
    "learners count for commits": Bug(learners_count_for_commits, MEMBERS),
    "a snapshot replaces a newer log": Bug(
        a_snapshot_replaces_a_newer_log, Profile(snapshot_entries=3)
    ),
    "messages of old terms are heeded": Bug(messages_of_old_terms_are_heeded, STRAGGLERS),
    "answers on trial count for real": Bug(answers_on_trial_count_for_real),
    "the vote outlives its term": Bug(the_vote_outlives_its_term),
    "a follower commits what it does not have in common": Bug(
        a_follower_commits_what_it_does_not_have_in_common
    ),
    "messages leave before what they promise is synced": Bug(
        the_term_is_forgotten_before_others_hear_it, SLOW_DISK
    ),
    "term and vote are not stored": Bug(
        None, Profile(driver=Driver(forgets_hard_state=True), crashes=4.0)
    ),
    "nothing is synced": Bug(None, Profile(driver=Driver(skips_log_sync=True))),
    "acks leave before the sync": Bug(
        None, Profile(driver=Driver(acks_before_sync=True), crashes=3.0, disk_ms=15.0)
    ),
    "the log is cut before the snapshot is durable": Bug(
        None,
        Profile(driver=Driver(cuts_before_snapshot=True), snapshot_entries=3, disk_ms=15.0),
    ),
    "members change twice at once": Bug(members_change_twice_at_once, IMPATIENT),
    "members change before the leader knows what is committed": Bug(
        members_change_before_the_leader_knows_what_is_committed, HASTY
    ),
    "members of a cut entry stay": Bug(members_of_a_cut_entry_stay, HASTY),
    "removed leaders never stand again": Bug(removed_leaders_never_stand_again, TWO_NODES),
    "those who hear a leader vote for another": Bug(leases_are_ignored, STEADY),
    "leaders without a majority go on": Bug(leaders_without_a_majority_go_on, ISOLATED),
}


SHOWN_BY_TRANSCRIPTS: list[tuple[Plant, str]] = [
    (members_change_before_the_leader_knows_what_is_committed, "membership_guard"),
    (members_change_twice_at_once, "membership_guard"),
    (members_of_a_cut_entry_stay, "membership_rolled_back"),
    (removed_leaders_never_stand_again, "membership_removed_leader_needed"),
    (leases_are_ignored, "election_of_a_node_that_was_cut_off"),
    (leaders_without_a_majority_go_on, "check_quorum"),
    (old_terms_are_committed_by_count, "commit_older_term"),
    (votes_are_given_twice, "vote_once"),
]
"""Found in worlds as well; here, step by step."""


@pytest.mark.parametrize(
    ("plant", "transcript"), SHOWN_BY_TRANSCRIPTS, ids=lambda one: getattr(one, "__name__", one)
)
def test_the_transcript_shows_that(
    plant: Plant, transcript: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (TRANSCRIPTS / f"{transcript}.txt").read_text(encoding="utf-8")
    assert rewritten(text) == text
    plant(monkeypatch)
    assert rewritten(text) != text


@pytest.mark.parametrize(
    "profile",
    [IMPATIENT, HASTY, LEARNERS, ISOLATED, STEADY, TWO_NODES],
    ids=["impatient", "hasty", "learners", "isolated", "steady", "two nodes"],
)
def test_the_worlds_made_for_bugs_find_none_without(profile: Profile) -> None:
    for seed in range(12):
        world = check(seed, profile)
        assert world.counts["undecided"] == 0


@pytest.mark.parametrize("name", BUGS)
def test_the_worlds_find(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    if bug.plant is not None:
        bug.plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            check(seed, bug.profile)
        except (AssertionError, StopIteration, IndexError) as found:
            print(f"{name}: seed {seed}: {str(found)[:120]}")
            return
    pytest.fail(f"{SEEDS_MAX} worlds have not noticed that {name}")
