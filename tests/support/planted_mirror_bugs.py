"""Bugs in journal mirrors, planted one at a time, that the mirror world must find."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from pydanube.cluster.mirrors import take_over
from pydanube.cluster.mirrors.service import MirrorService
from pydanube.model.ids import BrokerId, TopicId
from pydanube.storage.mirrors import replication
from pydanube.storage.mirrors.mirror_logs import MirrorLogs, SectionAnswer
from pydanube.storage.mirrors.replication import Answer, Replication
from pydanube.storage.mirrors.stream import Done, TopicStream
from pydanube.storage.topic_log import TopicLog
from tests.support.mirror_world import Faults, MirrorWorld, Plan

Plant = Callable[[pytest.MonkeyPatch], None]


def one_copy_is_enough(patch: pytest.MonkeyPatch) -> None:
    """The owner acknowledges what its own journal alone has."""
    patch.setattr(replication, "majority", lambda members: 1)


def the_first_answer_is_taken(patch: pytest.MonkeyPatch) -> None:
    """A new owner asks one member of the set and believes it."""

    def choose(
        set_epoch: int, members: Sequence[BrokerId], answers: Mapping[BrokerId, Answer]
    ) -> Answer | None:
        return next(iter(answers.values()), None)

    patch.setattr(take_over, "choose_answer", choose)


def batches_wait_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """Batches are answered as soon as the owner's own journal has them."""
    patch.setattr(TopicLog, "_is_mirrored", lambda log, entry: True)


def too_few_answers_are_enough(patch: pytest.MonkeyPatch) -> None:
    """A new owner believes that one member knows all that a majority of three has."""
    patch.setattr(replication, "answers_needed", lambda members: 1)


def epochs_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A mirror takes records of any owner, whoever has asked for its tail since."""
    patch.setattr(MirrorLogs, "_latest", lambda logs, topic_id: 0)


def promises_are_not_journaled(patch: pytest.MonkeyPatch) -> None:
    """A mirror that starts again has forgotten its promise to take nothing of an old owner.

    It would still see the new owner's claim in the catalogue, and does not look.
    """

    def queue_promise(logs: MirrorLogs, topic_id: TopicId, epoch: int) -> None:
        pass

    def check_claim(service: MirrorService, topic: str, topic_id: TopicId, epoch: int) -> None:
        pass

    patch.setattr(MirrorLogs, "_queue_promise", queue_promise)
    patch.setattr(MirrorService, "_check_claim", check_claim)


def mirrors_answer_before_they_have_synced(patch: pytest.MonkeyPatch) -> None:
    async def when_synced(logs: MirrorLogs, answers: list[SectionAnswer]) -> list[SectionAnswer]:
        return answers

    patch.setattr(MirrorLogs, "_when_synced", when_synced)


def sets_change_by_the_old_majority_alone(patch: pytest.MonkeyPatch) -> None:
    """While a set is being replaced, what the old one has is acknowledged."""

    def advance(replication: Replication) -> None:
        if replication.members:
            position = min(replication.own_synced, replication._reached(replication.members))
            replication.acknowledged = max(replication.acknowledged, position)

    patch.setattr(Replication, "_advance", advance)


def acks_wait_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """Acks are answered as soon as the owner's own journal has them."""

    def when_acknowledged(stream: TopicStream, number: int, done: Done) -> None:
        done(None)

    patch.setattr(TopicStream, "when_acknowledged", when_acknowledged)


@dataclass(frozen=True)
class Case:
    """A bug, and the worlds of which one finds it."""

    plant: Plant
    faults: Faults = field(default_factory=Faults)
    replicas: tuple[int, ...] = (2, 3)
    record_seconds: float = 0.2
    first: int = 1
    """The seed to begin with."""

    def world(self, seed: int, replicas: int) -> MirrorWorld:
        plan = Plan(
            replicas=replicas,
            news_seconds=4.0,
            seconds=6.0,
            faults=self.faults,
            record_seconds=self.record_seconds,
        )
        return MirrorWorld(f"planted {replicas} {seed}", plan)


USURPERS = Faults(crash=0, wipe=0, cut=0, move=0, quiet=1, slow_disk=0, usurp=6)
"""Owners that have been replaced go on, and only their mirrors can stop them."""
RELIEFS = Faults(crash=0, wipe=0, cut=0, move=0, quiet=1, slow_disk=0, relieve=6)
"""Mirrors change places, and owners die as soon as that is recorded."""
LOSSES = Faults(crash=6, wipe=6, cut=1, move=2, quiet=1, slow_disk=6)
"""Disks are slow, and machines are lost while something is on its way to them."""

FOUND = (
    Case(one_copy_is_enough),
    Case(the_first_answer_is_taken),
    Case(batches_wait_for_nobody),
    Case(too_few_answers_are_enough, replicas=(3,), first=3),
    Case(epochs_are_not_checked, USURPERS, replicas=(2,)),
    Case(promises_are_not_journaled, USURPERS, replicas=(2,), first=9),
    Case(mirrors_answer_before_they_have_synced, LOSSES, replicas=(2,), first=11),
    Case(
        acks_wait_for_nobody,
        Faults(crash=8, wipe=4, cut=6, move=4, quiet=0, slow_disk=0),
        replicas=(3,),
        first=20,
    ),
    Case(sets_change_by_the_old_majority_alone, RELIEFS, replicas=(2,), record_seconds=0.4),
)
