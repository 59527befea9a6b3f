"""Whatever happens to mirrors and sets: what is acknowledged is found again."""

from collections.abc import Callable, Collection, Mapping

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pydanube.model.ids import BrokerId
from pydanube.storage.mirrors import replication
from pydanube.storage.mirrors.replication import (
    Answer,
    Replication,
    answers_needed,
    majority,
)

OWN = BrokerId(1)
MIRRORS = [BrokerId(number) for number in (2, 3, 4)]
mirrors = st.sampled_from(MIRRORS)


class Journals(RuleBasedStateMachine):
    """An owner and mirrors with disks of their own; `core` only knows what they have told it."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Replication(OWN)
        self.disks = dict.fromkeys([OWN, *MIRRORS], 0)
        self.on_the_way: list[tuple[BrokerId, int]] = []
        self.recorded: tuple[BrokerId, ...] = ()
        self.unknown = False

    @rule(synced=st.booleans())
    def publish(self, *, synced: bool) -> None:
        self.core.add()
        while synced and self.disks[OWN] < self.core.last:
            self.sync_here()

    @rule()
    def sync_here(self) -> None:
        if self.disks[OWN] < self.core.last:
            self.disks[OWN] += 1
            self.core.synced(self.disks[OWN])

    @rule(mirror=mirrors, count=st.integers(1, 9), answered=st.booleans())
    def sync_there(self, mirror: BrokerId, count: int, *, answered: bool) -> None:
        self.disks[mirror] = min(self.disks[mirror] + count, self.core.last)
        if answered:
            self.core.has(mirror, self.disks[mirror])
        else:
            self.on_the_way.append((mirror, self.disks[mirror]))

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data())
    def an_answer_arrives(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.on_the_way) - 1))
        self.core.has(*self.on_the_way.pop(number))

    @precondition(lambda self: self.on_the_way)
    @rule()
    def an_answer_is_lost(self) -> None:
        self.on_the_way.pop()

    @precondition(lambda self: self.core.next_members is None)
    @rule(members=st.lists(mirrors, unique=True, max_size=3))
    def begin_change(self, members: list[BrokerId]) -> None:
        self.core.begin_change([OWN, *members])

    @precondition(lambda self: self.core.next_members is not None)
    @rule(answered=st.booleans())
    def record(self, *, answered: bool) -> None:
        if not self.core.is_covered and not self.unknown:
            return
        assert self.core.next_members is not None
        self.recorded = self.core.next_members
        self.unknown = not answered
        if answered:
            self.core.end_change(recorded=True)

    @precondition(lambda self: self.core.next_members is not None and not self.unknown)
    @rule()
    def give_up(self) -> None:
        self.core.end_change(recorded=False)

    @invariant()
    def it_is_on_a_majority_of_the_recorded_set(self) -> None:
        acknowledged = self.core.acknowledged
        if not self.recorded:
            assert acknowledged == 0
            return
        holding = [each for each in self.recorded if self.disks[each] >= acknowledged]
        assert len(holding) >= len(self.recorded) // 2 + 1
        assert self.disks[OWN] >= acknowledged

    @invariant()
    def any_members_that_are_enough_find_it(self) -> None:
        if not self.recorded:
            return
        shortest = sorted(self.recorded, key=lambda each: self.disks[each])
        asked = shortest[: answers_needed(len(self.recorded))]
        best = replication.choose_answer(
            1, self.recorded, {each: self._answer(each) for each in asked}
        )
        assert best is not None
        assert self.disks[best.broker] >= self.core.acknowledged

    def _answer(self, broker: BrokerId) -> Answer:
        held = self.disks[broker]
        stream = 0 if broker == OWN else 9
        return Answer(broker=broker, epoch=1, stream=stream, sequence=held, end=held)


TestJournals = Journals.TestCase


@given(st.integers(1, 9))
def test_every_majority_meets_every_group_of_enough_answers(members: int) -> None:
    assert majority(members) + answers_needed(members) > members


# Each of these must not pass.


def _self_counts_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def add(core: Replication) -> int:
        core.last += 1
        core.synced(core.last)
        return core.last

    patch.setattr(Replication, "add", add)


def _half_is_a_majority(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replication, "majority", lambda members: max(members // 2, 1))


def _an_unrecorded_set_counts(patch: pytest.MonkeyPatch) -> None:
    plain = Replication.begin_change

    def begin_change(core: Replication, members: list[BrokerId]) -> None:
        plain(core, members)
        core.members = core.members or tuple(members)

    patch.setattr(Replication, "begin_change", begin_change)


def _the_shortest_copy_is_taken(patch: pytest.MonkeyPatch) -> None:
    def choose(
        set_epoch: int, members: Collection[BrokerId], answers: Mapping[BrokerId, Answer]
    ) -> Answer | None:
        return min(answers.values(), key=lambda answer: answer.rank)

    patch.setattr(replication, "choose_answer", choose)


@pytest.mark.parametrize(
    "plant",
    [
        _self_counts_before_the_sync,
        _half_is_a_majority,
        _an_unrecorded_set_counts,
        _the_shortest_copy_is_taken,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Journals,
            settings=settings(
                max_examples=400,
                stateful_step_count=50,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
