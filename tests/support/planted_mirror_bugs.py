"""Bugs in journal mirrors, planted one at a time, that the mirror world must find."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from pydanube.cluster.mirrors import take_over
from pydanube.cluster.mirrors.service import MirrorService
from pydanube.model.ids import BrokerId, TopicId
from pydanube.storage.mirrors import replication
from pydanube.storage.mirrors.mirror_logs import MirrorLogs, SectionAnswer
from pydanube.storage.mirrors.replication import Answer, Replication
from pydanube.storage.mirrors.stream import Done, TopicStream
from pydanube.storage.topic_log import TopicLog

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


def the_old_majority_alone_counts(patch: pytest.MonkeyPatch) -> None:
    """While a set takes the place of another, only the one is asked that was recorded before."""

    def advance(state: Replication) -> None:
        if state.members:
            reached = min(state.own_synced, state._reached(state.members))
            state.acknowledged = max(state.acknowledged, reached)

    patch.setattr(Replication, "_advance", advance)


def sets_are_recorded_uncovered(patch: pytest.MonkeyPatch) -> None:
    """A set is recorded before its members have what was acknowledged."""
    patch.setattr(Replication, "is_covered", property(lambda state: True))


def mirrors_answer_before_they_have_synced(patch: pytest.MonkeyPatch) -> None:
    async def when_synced(logs: MirrorLogs, answers: list[SectionAnswer]) -> list[SectionAnswer]:
        return answers

    patch.setattr(MirrorLogs, "_when_synced", when_synced)


def acks_wait_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """Acks are answered as soon as the owner's own journal has them."""

    def when_acknowledged(stream: TopicStream, number: int, done: Done) -> None:
        done(None)

    patch.setattr(TopicStream, "when_acknowledged", when_acknowledged)


PLANTS: tuple[Plant, ...] = (
    one_copy_is_enough,
    the_first_answer_is_taken,
    batches_wait_for_nobody,
    too_few_answers_are_enough,
    epochs_are_not_checked,
    promises_are_not_journaled,
    the_old_majority_alone_counts,
    sets_are_recorded_uncovered,
    mirrors_answer_before_they_have_synced,
    acks_wait_for_nobody,
)
