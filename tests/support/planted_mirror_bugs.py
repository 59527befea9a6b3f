"""Bugs in journal mirrors, planted one at a time, that the mirror world must find."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from pydanube.cluster.mirrors import copies, take_over
from pydanube.model.ids import BrokerId, TopicId
from pydanube.storage.mirrors import mirror_logs, replication
from pydanube.storage.mirrors.mirror_logs import MirrorLogs, SectionAnswer
from pydanube.storage.mirrors.replication import Answer, Replication
from pydanube.storage.storage import Storage
from pydanube.storage.topic_log import TopicLog

Plant = Callable[[pytest.MonkeyPatch], None]


def one_copy_is_enough(patch: pytest.MonkeyPatch) -> None:
    """The owner acknowledges what its own journal alone has."""
    patch.setattr(replication, "majority", lambda members: 1)


def mirrors_answer_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    async def at_once(logs: MirrorLogs, answers: list[SectionAnswer]) -> list[SectionAnswer]:
        return answers

    patch.setattr(MirrorLogs, "_when_synced", at_once)


def the_old_set_alone_counts(patch: pytest.MonkeyPatch) -> None:
    """While the set changes, a majority of the set of before is taken for enough."""

    def advance(core: Replication) -> None:
        if core.members:
            reached = min(core.own_synced, core._reached(core.members))
            core.acknowledged = max(core.acknowledged, reached)

    patch.setattr(Replication, "_advance", advance)


def a_set_is_recorded_before_it_has_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replication, "is_covered", property(lambda core: True))
    patch.setattr(copies.Copy, "_send_tail", _nothing)


async def _nothing(*_: Any) -> None:
    return None


def promises_are_kept_in_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MirrorLogs, "_queue_promise", lambda logs, topic_id, epoch: None)


def promises_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    def latest(logs: MirrorLogs, topic_id: TopicId) -> int:
        index = logs._contents.topics.get(topic_id)
        return index.epoch if index is not None else 0

    patch.setattr(MirrorLogs, "_latest", latest)


def an_owner_that_is_asked_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Storage, "_fence_log", lambda storage, topic_id, error: None)


def the_first_answer_is_taken(patch: pytest.MonkeyPatch) -> None:
    def choose(
        set_epoch: int, members: Sequence[BrokerId], answers: Mapping[BrokerId, Answer]
    ) -> Answer | None:
        return next(iter(answers.values()), None)

    patch.setattr(take_over, "choose_answer", choose)


def who_has_lost_its_disk_counts(patch: pytest.MonkeyPatch) -> None:
    def choose(
        set_epoch: int, members: Sequence[BrokerId], answers: Mapping[BrokerId, Answer]
    ) -> Answer | None:
        if len(answers) < replication.answers_needed(len(members)):
            return None
        return max(answers.values(), key=lambda answer: answer.rank)

    patch.setattr(take_over, "choose_answer", choose)


def a_copy_is_whole_before_it_has_caught_up(patch: pytest.MonkeyPatch) -> None:
    plain = MirrorLogs._begin

    def begin(logs: MirrorLogs, *rest: Any) -> Any:
        copy = plain(logs, *rest)
        if copy.sequence is None:
            copy.sequence = 0
        return copy

    patch.setattr(MirrorLogs, "_begin", begin)
    patch.setattr(mirror_logs, "NOT_WHOLE", 0)


def progress_is_not_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Storage, "belongs", lambda storage, subscription_id, topic_id: None)


def batches_wait_for_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicLog, "_is_mirrored", lambda log, entry: True)


PLANTS: tuple[Plant, ...] = (
    one_copy_is_enough,
    mirrors_answer_before_the_sync,
    the_old_set_alone_counts,
    a_set_is_recorded_before_it_has_everything,
    promises_are_kept_in_memory,
    promises_are_not_kept,
    an_owner_that_is_asked_goes_on,
    the_first_answer_is_taken,
    who_has_lost_its_disk_counts,
    a_copy_is_whole_before_it_has_caught_up,
    progress_is_not_sent,
    batches_wait_for_nobody,
)
