"""Bugs in how brokers share topics, planted one at a time, that the cluster world must find."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from pydanube.broker.disk_watch import DiskWatch, Trouble
from pydanube.cluster import ownership, planning
from pydanube.cluster.membership import LeaseTerms, Membership
from pydanube.cluster.mirrors.recorded_sets import RecordedSets
from pydanube.cluster.opening import Beginning, Opening
from pydanube.cluster.ownership import Ownership
from pydanube.cluster.records import Handover
from pydanube.errors import DanubeError
from pydanube.model.ids import BrokerId, Offset, TopicId
from pydanube.model.progress import Progress
from pydanube.storage.mirrors.mirror_logs import MirrorLogs
from pydanube.storage.storage import Storage
from pydanube.storage.topic_log import TopicLog
from pydanube.subscriptions.cursor import Cursor
from pydanube.subscriptions.subscription import Subscription
from pydanube.topics.topic import Topic
from tests.support.cluster_plans import FaultName, with_best_effort_topic
from tests.support.cluster_world import ClusterWorld

Plant = Callable[[pytest.MonkeyPatch], None]


def cursors_are_handed_over_ahead_of_acks(patch: pytest.MonkeyPatch) -> None:
    _change_handover(
        patch,
        lambda topic, handover: replace(
            handover, cursors=dict.fromkeys(topic.subscriptions, Progress(handover.end))
        ),
    )


def cursors_are_not_handed_over(patch: pytest.MonkeyPatch) -> None:
    _change_handover(patch, lambda topic, handover: replace(handover, cursors={}))


def _change_handover(
    patch: pytest.MonkeyPatch, change: Callable[[Topic, Handover], Handover]
) -> None:
    plain = Ownership._describe

    def describe(ownership: Ownership, topic: Topic, epoch: int) -> Handover:
        return change(topic, plain(ownership, topic, epoch))

    patch.setattr(Ownership, "_describe", describe)


def topics_are_handed_over_unsealed(patch: pytest.MonkeyPatch) -> None:
    """What the last owner had in its journal alone does not get into segments."""

    async def seal(storage: Storage, topic_id: TopicId) -> None:
        await storage.flush()

    patch.setattr(Storage, "seal_topic", seal)


def an_ownership_begins_before_the_tail_is_exported(patch: pytest.MonkeyPatch) -> None:
    """Where the tail ends is taken for done, and what is in it for somebody else's business."""

    async def export_tail(
        storage: Storage, topic_id: TopicId, name: str, epoch: int, start: Offset, batches: Any
    ) -> Offset:
        end = start
        async for stored in batches:
            end = Offset(stored[-1].base + stored[-1].batch.count)
        return end

    patch.setattr(Storage, "export_tail", export_tail)


def copies_are_recorded_when_messages_have_been_acknowledged(patch: pytest.MonkeyPatch) -> None:
    plain = RecordedSets.record
    later: list[asyncio.Task[None]] = []

    async def record(
        sets: RecordedSets, topic: str, epoch: int, members: Sequence[BrokerId]
    ) -> None:
        async def write() -> None:
            await asyncio.sleep(2.0)
            with suppress(DanubeError):
                await plain(sets, topic, epoch, members)

        later.append(asyncio.create_task(write()))

    patch.setattr(RecordedSets, "record", record)


def the_last_owner_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """Whoever is given a topic begins where its segments end."""

    async def recovered(opening: Opening, topic: str, record: Any, *_: Any) -> Any:
        return Beginning(start=opening._frontier(topic, record))

    patch.setattr(Opening, "_recovered", recovered)


def topics_without_copies_are_given_away(patch: pytest.MonkeyPatch) -> None:
    """The leader does not ask whether living brokers have what was acknowledged."""
    patch.setattr(planning, "is_recoverable", lambda view, topic: True)
    the_last_owner_is_not_asked(patch)


def batches_wait_for_no_mirror(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicLog, "_is_mirrored", lambda log, entry: True)


def mirrors_are_not_told_what_is_settled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Storage, "belongs", lambda storage, subscription_id, topic_id: None)


def mirrors_forget_whom_they_promised(patch: pytest.MonkeyPatch) -> None:
    """A mirror takes records of an owner after another one has asked for its tail."""

    def latest(logs: MirrorLogs, topic_id: TopicId) -> int:
        index = logs._contents.topics.get(topic_id)
        return index.epoch if index is not None else 0

    patch.setattr(MirrorLogs, "_latest", latest)
    patch.setattr(Storage, "_fence_log", lambda storage, topic_id, error: None)


def what_is_in_doubt_is_handed_over(patch: pytest.MonkeyPatch) -> None:
    """Producers' sequences know of a batch that the end of the topic does not include.

    Brokers that are not sure of their place refuse at once, so that much is in doubt.
    """
    patch.setattr(LeaseTerms, "patience_ms", property(lambda terms: terms.trusted_ms))
    patch.setattr(ownership, "_check_whole", lambda log, name: None)


def sequences_are_not_handed_over(patch: pytest.MonkeyPatch) -> None:
    """The next owner takes for new what producers repeat because they heard no answer."""
    _change_handover(patch, lambda topic, handover: replace(handover, producers=()))


def leases_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """Once a member, a broker goes on as one, whether its lease is renewed or not.

    All other defences work: mirrors keep their promises, and everything carries its epoch.
    """
    patch.setattr(
        Membership, "is_certain", property(lambda membership: membership._renewed_ms is not None)
    )


def leases_are_trusted_too_long(patch: pytest.MonkeyPatch) -> None:
    """A broker that was away goes on as if it had been heard, and its mirrors let it."""
    patch.setattr(LeaseTerms, "trusted_ms", property(lambda terms: 100 * terms.ttl_ms))
    mirrors_forget_whom_they_promised(patch)


def best_effort_topics_ask_nobody(patch: pytest.MonkeyPatch) -> None:
    """Only logs heed leases, as if nothing but what is stored mattered."""
    patch.setattr(Topic, "doubt", lambda topic: None)


def acks_ask_nobody(patch: pytest.MonkeyPatch) -> None:
    """Only messages heed leases, not what consumers answer."""
    plain = Cursor.answer

    def answer(cursor: Cursor) -> None:
        cursor._guard = None
        plain(cursor)

    patch.setattr(Cursor, "answer", answer)


def a_stuck_journal_keeps_the_lease(patch: pytest.MonkeyPatch) -> None:
    """A broker that cannot write stays what it was, and its process lives on."""

    async def until(watch: DiskWatch, matters: Callable[[Trouble], bool]) -> Trouble:
        return await asyncio.get_running_loop().create_future()

    patch.setattr(DiskWatch, "until", until)


def acks_count_by_name_and_offset_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Subscription, "may_settle", lambda *arguments: True)


@dataclass(frozen=True)
class Case:
    """A bug, the law that it breaks, and a world in which it does."""

    plant: Plant
    law: str
    seed: int
    faults: tuple[FaultName, ...]
    replicas: int = 2
    gap_seconds: float = 2.5
    best_effort: bool = False
    """With a topic that stores nothing, which no mirror and no epoch of a record protects."""
    churns: bool = False
    """With a topic that is deleted and made anew, whose consumers ack what they had before."""

    def world(self, number: int = 0) -> ClusterWorld:
        """Return the world, or one of those that come after it."""
        seed = self.seed + number
        world = ClusterWorld.plain(
            seed,
            *self.faults,
            replicas=self.replicas,
            gap_seconds=self.gap_seconds,
            churns=self.churns,
        )
        if self.best_effort:
            world.plan = with_best_effort_topic(world.plan, world.chance("best effort"))
        return world


FOUND = (
    Case(acks_count_by_name_and_offset_alone, "settled by others", 1, ("kill",), churns=True),
    Case(cursors_are_handed_over_ahead_of_acks, "unseen", 17, ("move",)),
    Case(cursors_are_not_handed_over, "acked and redelivered", 1, ("move",)),
    Case(topics_are_handed_over_unsealed, "lost write", 1, ("move",)),
    Case(the_last_owner_is_not_asked, "lost write", 1, ("kill",)),
    Case(an_ownership_begins_before_the_tail_is_exported, "lost write", 1, ("kill",)),
    Case(
        copies_are_recorded_when_messages_have_been_acknowledged, "lost write", 1, ("kill", "move")
    ),
    Case(mirrors_are_not_told_what_is_settled, "acked and redelivered", 5, ("kill",)),
    Case(topics_without_copies_are_given_away, "lost write", 7, ("kill",), replicas=1),
    Case(sequences_are_not_handed_over, "forgotten session", 1, ("move",)),
    Case(sequences_are_not_handed_over, "stored twice", 1, ("unheard",), gap_seconds=0.3),
    Case(leases_are_ignored, "lapsed lease", 2, ("partition",), replicas=1),
    Case(leases_are_ignored, "deposed owner", 3, ("partition",), gap_seconds=1.0, best_effort=True),
    Case(
        best_effort_topics_ask_nobody,
        "deposed owner",
        3,
        ("partition",),
        gap_seconds=1.0,
        best_effort=True,
    ),
    Case(acks_ask_nobody, "lapsed lease", 1, ("unsure",), gap_seconds=0.5),
    Case(acks_ask_nobody, "deposed owner", 2, ("unsure",), gap_seconds=0.5),
    Case(leases_are_trusted_too_long, "inconsistent offset", 16, ("pause",), gap_seconds=1.0),
    Case(batches_wait_for_no_mirror, "lost write", 6, ("kill", "delay"), gap_seconds=0.6),
    Case(
        what_is_in_doubt_is_handed_over, "lost write", 21, ("unsure",), replicas=1, gap_seconds=0.5
    ),
    Case(a_stuck_journal_keeps_the_lease, "not served", 1, ("sick_disk",)),
)
