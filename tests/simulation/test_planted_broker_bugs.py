"""The worlds are worth something: each of these bugs, planted in the broker, breaks a law in one.

Some have been in the broker; the world found them, and keeps looking for them here.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from pydanube.broker import broker
from pydanube.dispatch.key_shared import KeySharedDispatcher
from pydanube.dispatch.reliable import ReliableDispatcher
from pydanube.errors import Unavailable
from pydanube.model.ids import Offset, ProducerId
from pydanube.runtime.files import NoRoom
from pydanube.runtime.mended_file import MendedFile
from pydanube.runtime.room import Room
from pydanube.runtime.simulation.append_file import SimulatedAppendFile
from pydanube.runtime.simulation.disk import SimulatedFiles
from pydanube.storage.journal import recovery
from pydanube.storage.journal.comparison import Compared
from pydanube.storage.journal.housekeeping import Housekeeping
from pydanube.storage.journal.progress import FoldedProgress
from pydanube.storage.journal.retention import Use
from pydanube.storage.journal.writer import JournalWriter
from pydanube.storage.segments import directory_store
from pydanube.storage.storage import Storage
from pydanube.storage.topic_log import TopicLog
from pydanube.subscriptions.cursor import Cursor
from pydanube.subscriptions.marks import Marks
from pydanube.subscriptions.subscription import Subscription
from pydanube.topics.catalog import Catalog, Ids
from pydanube.topics.topic import Topic
from tests.support import plans
from tests.support.nemesis import Faults
from tests.support.older_metadata import OlderMetadata
from tests.support.workloads import MESSAGE_BYTES_MAX
from tests.support.world import World

pytestmark = pytest.mark.slow

SEEDS_MAX = 150
CRASHES = Faults(power=True, kill=True, instant=True)
HASTE = Faults(instant=True)
ROOM = Faults(full_disk=True, kill=True)

Plant = Callable[[pytest.MonkeyPatch], None]


def journal_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    _leave_out_syncs(monkeypatch, "/wal/")


def metadata_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    _leave_out_syncs(monkeypatch, "/raft/")


def _leave_out_syncs(monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
    async def append_and_sync(self: SimulatedAppendFile, parts: Sequence[bytes]) -> None:
        steps = [self._append_step(parts)]
        if directory not in self._path:
            steps.append(self._sync_step())
        await self._submit(*steps)

    monkeypatch.setattr(SimulatedAppendFile, "append_and_sync", append_and_sync)


def names_of_new_files_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    sync_directory = SimulatedFiles.sync_directory

    async def forget(self: SimulatedFiles, path: str) -> None:
        if not path.endswith("/wal"):
            await sync_directory(self, path)

    monkeypatch.setattr(SimulatedFiles, "sync_directory", forget)


def publishes_are_answered_before_they_are_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    append = TopicLog.append

    def hasty(self: TopicLog, batch: Any, done: Any, **rest: Any) -> Offset:
        base = append(self, batch, lambda error: None, **rest)
        asyncio.get_running_loop().call_soon(done, None)
        return base

    monkeypatch.setattr(TopicLog, "append", hasty)


def acks_are_answered_before_they_are_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cursor, "when_durable", lambda self, done: done(None))


def a_failed_sync_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    append_and_sync = SimulatedAppendFile.append_and_sync

    async def stubborn(self: SimulatedAppendFile, parts: Sequence[bytes]) -> None:
        try:
            await append_and_sync(self, parts)
        except OSError:
            self._failure = None
            await self.sync()

    monkeypatch.setattr(SimulatedAppendFile, "append_and_sync", stubborn)


def a_torn_tail_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(files: Any, directory: str, found: Any) -> None:
        newest = found.files[-1]
        if found.torn is not None:
            newest.end = found.torn.position

    monkeypatch.setattr(recovery, "_make_durable", leave)


def the_last_offset_is_given_again_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    make = TopicLog.__init__

    def forgetful(self: Any, *arguments: Any, **rest: Any) -> None:
        make(self, *arguments, **rest)
        if self._next:
            self._next = self._durable_end = Offset(self._next - 1)

    monkeypatch.setattr(TopicLog, "__init__", forgetful)


def the_cursor_skips_what_is_not_acked(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = FoldedProgress.apply

    def hasty(self: Any, change: Any) -> None:
        apply(self, change)
        for _, end in change.settled:
            self._settled.add(self._cursor, end)

    monkeypatch.setattr(FoldedProgress, "apply", hasty)


def attempts_are_not_journaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cursor, "count", lambda self, start, end, attempts: None)


def a_nack_releases_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    retry = KeySharedDispatcher._retry

    def release(self: Any, start: int, end: int, attempts: int, wait_ms: int) -> None:
        retry(self, start, end, attempts, wait_ms)
        for offset in range(start, end):
            key = self._firsts[offset]
            if key.later:
                self._firsts[key.later[0]] = key
                self._new_turns.append(key.later[0])
                key.first, key.delivered = key.later.popleft(), False

    monkeypatch.setattr(KeySharedDispatcher, "_retry", release)


def producers_get_new_ids_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    producers = Catalog.producers

    def renumbered(self: Catalog, topic: str) -> Iterator[Any]:
        for name, record in producers(self, topic):
            yield name, replace(record, id=ProducerId(record.id ^ 1))

    monkeypatch.setattr(Catalog, "producers", renumbered)


def ids_begin_anew_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take(self: Any) -> int:
        self._next += 1
        return int(self._next)

    monkeypatch.setattr(Ids, "take", take)


def dead_letters_count_as_stored_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Topic._store_dead_letter

    def hasty(self: Topic, subscription: Subscription, action: Any) -> None:
        store(self, subscription, action)
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: subscription.dead_letter_stored(action.offset))

    monkeypatch.setattr(Topic, "_store_dead_letter", hasty)
    monkeypatch.setattr(plans, "POISON_SHARES", (40,))
    monkeypatch.setattr(plans, "POISON_POLICIES", ("DeadLetter",))


def acks_from_before_a_restart_are_answered_and_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ReliableDispatcher, "_settle_seen_before", lambda *arguments: None)


def a_repeated_ack_is_answered_though_the_journal_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = Cursor._answered

    def forgetful(self: Any, *arguments: Any) -> None:
        answered(self, *arguments)
        self._failure = None

    monkeypatch.setattr(Cursor, "_answered", forgetful)


def nacks_are_answered_before_they_are_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    nack = Subscription.nack

    def hasty(self: Subscription, start: Any, end: Any, delay: int, reason: Any, done: Any) -> None:
        nack(self, start, end, delay, reason, lambda error: None)
        done(None)

    monkeypatch.setattr(Subscription, "nack", hasty)


def consumers_from_before_a_restart_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Any, consumer: Any) -> None:
        consumer.inactive_since_ms = self._now_ms()
        self._consumers[consumer.id] = consumer

    monkeypatch.setattr(Subscription, "restore", forgetful)


def a_stop_fails_when_the_journal_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_flush", Storage.flush)


def a_failed_read_of_keys_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def give_up(self: Any, source: Any, start: Offset, end: Offset) -> None:
        with suppress(Unavailable):
            self._feed(self._keys_of(await source.read(start, end), start))

    monkeypatch.setattr(Subscription, "_read_keys_later", give_up)


def what_is_refused_is_stored_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Topic.publish

    def generous(self: Topic, message: Any, answer: Any, *rest: Any) -> None:
        publish(self, message, answer, *rest)
        if len(message.payload) > MESSAGE_BYTES_MAX:
            smaller = replace(message, payload=message.payload[:50], wire=None)
            publish(self, smaller, lambda *answers: None, *rest)

    monkeypatch.setattr(Topic, "publish", generous)


def numbers_of_messages_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Topic.publish
    monkeypatch.setattr(
        Topic, "publish", lambda self, message, answer, number=None: publish(self, message, answer)
    )
    monkeypatch.setattr(plans, "BY_CLIENT_ONE_IN", 1)


def journal_files_go_before_their_messages_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Housekeeping, "_use_of", lambda self, file: Use.EXPORTED)


def segments_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write(files: Any, directory: str, name: str, data: bytes) -> None:
        file = await files.create(f"{directory}/{name}.tmp")
        await file.append([data])
        await file.close()
        await files.rename(f"{directory}/{name}.tmp", f"{directory}/{name}")

    monkeypatch.setattr(directory_store, "write_atomically", write)


def acks_count_by_name_and_offset_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subscription, "may_settle", lambda *arguments: True)


def acks_from_before_a_restart_count_by_name_and_offset_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is out with a consumer is safe; what was there before the broker started is not."""

    def may_settle(self: Subscription, mark: str | None, offset: Offset, peer: str) -> bool:
        is_out = self._dispatcher.holder(offset) is not None
        return not is_out or mark is None or self.knows(mark)

    monkeypatch.setattr(Subscription, "may_settle", may_settle)
    monkeypatch.setattr(plans, "CHURNS_ONE_IN", 1)


def marks_are_others_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = count()

    def others(self: Marks, life: str) -> None:
        make(self, f"{life}-{next(drawn)}")

    make = Marks.__init__
    monkeypatch.setattr(Marks, "__init__", others)


def a_lack_of_descriptors_is_a_failed_write(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hasty(self: Room, work: Callable[[], Any]) -> Any:
        return await work()

    monkeypatch.setattr(Room, "carry_out", hasty)


def what_a_full_disk_took_in_part_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    mend = MendedFile._mend

    async def trust(self: MendedFile) -> None:
        size = await self._files.size(self._path)
        self._length = lambda: size
        self._check = None
        await mend(self)

    monkeypatch.setattr(MendedFile, "_mend", trust)


def what_a_full_disk_did_not_take_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hopeful(self: Room, work: Callable[[], Any]) -> Any:
        with suppress(NoRoom):
            return await work()

    monkeypatch.setattr(Room, "carry_out", hopeful)
    # Whoever rotates needs what comes of it.
    monkeypatch.setattr(JournalWriter, "_rotation_due", lambda self: None)


PLANTED: list[tuple[Plant, Faults, str]] = [
    # A broker that finds its own promises broken says so, and does not start.
    (journal_is_not_synced, CRASHES, "broker|lost write"),
    (metadata_is_not_synced, CRASHES, "broker|lost write|inconsistent offset"),
    (names_of_new_files_are_not_synced, CRASHES, "broker|lost write"),
    (publishes_are_answered_before_they_are_durable, HASTE, "lost write"),
    (acks_are_answered_before_they_are_durable, HASTE, "acked and redelivered"),
    (a_failed_sync_is_tried_again, Faults(power=True, sick_disk=True), "broker|lost write"),
    (a_torn_tail_stays_where_it_is, CRASHES, "broker|lost write"),
    (the_last_offset_is_given_again_after_a_restart, CRASHES, "inconsistent offset"),
    (the_cursor_skips_what_is_not_acked, CRASHES, "unseen"),
    (attempts_are_not_journaled, CRASHES, "forgotten attempt"),
    (a_nack_releases_its_key, Faults(), "key order"),
    (producers_get_new_ids_after_a_restart, CRASHES, "unstable id"),
    (ids_begin_anew_after_a_restart, CRASHES, "lost write"),
    (dead_letters_count_as_stored_at_once, HASTE, "starvation"),
    (acks_from_before_a_restart_are_answered_and_forgotten, CRASHES, "acked and redelivered"),
    (
        a_repeated_ack_is_answered_though_the_journal_failed,
        Faults(sick_disk=True),
        "acked and redelivered",
    ),
    (nacks_are_answered_before_they_are_durable, HASTE, "forgotten attempt"),
    (consumers_from_before_a_restart_are_unknown, CRASHES, "unseen"),
    (a_stop_fails_when_the_journal_has, Faults(stop=True, sick_disk=True), "broker"),
    (a_failed_read_of_keys_is_the_last, Faults(sick_reads=True), "starvation"),
    (what_is_refused_is_stored_all_the_same, Faults(), "aborted read"),
    (journal_files_go_before_their_messages_are_elsewhere, CRASHES, "lost write|unseen"),
    (segments_are_not_synced, CRASHES, "lost write|stuck|broker"),
    (numbers_of_messages_are_ignored, Faults(network=True), "stored twice"),
    (acks_count_by_name_and_offset_alone, Faults(), "settled by others"),
    (marks_are_others_after_a_restart, CRASHES, "acked and redelivered"),
    (acks_from_before_a_restart_count_by_name_and_offset_alone, CRASHES, "settled by others"),
    (a_lack_of_descriptors_is_a_failed_write, Faults(no_descriptors=True), "broker"),
    (a_lack_of_descriptors_is_a_failed_write, Faults(full_disk=True), "broker"),
    (what_a_full_disk_took_in_part_is_not_cut_off, ROOM, "broker|lost write|stuck"),
    (what_a_full_disk_did_not_take_is_acknowledged, ROOM, "broker|lost write|stuck"),
]


@pytest.mark.parametrize(
    ("plant", "faults", "laws"), PLANTED, ids=[plant.__name__ for plant, _, _ in PLANTED]
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, faults: Faults, laws: str
) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        for violation in World(seed, faults).run().violations:
            if violation.law in laws.split("|"):
                print(f"{plant.__name__}: found by seed {seed}: {violation}")
                return
    pytest.fail(f"{plant.__name__} was not found by {SEEDS_MAX} seeds")


def ids_from_the_metadata_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ids, "never_again", lambda self, given: None)


def what_the_metadata_lack_counts_as_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Storage, "compare", lambda self, *arguments: Compared())


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (ids_from_the_metadata_alone, "does not start|contradicts itself|lost write"),
        (what_the_metadata_lack_counts_as_deleted, "lost write"),
    ],
)
def test_a_planted_bug_is_found_by_an_older_copy_of_the_metadata(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, words: str
) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        found = " ".join(OlderMetadata(seed).run())
        if re.search(words, found):
            print(f"{plant.__name__}: found by seed {seed}: {found[:200]}")
            return
    pytest.fail(f"{plant.__name__} was not found by {SEEDS_MAX} seeds")


def test_a_violation_is_reported_with_its_seed_its_replay_and_what_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publishes_are_answered_before_they_are_durable(monkeypatch)
    outcomes = (World(seed, HASTE).run() for seed in range(SEEDS_MAX))
    failed = next(each for each in outcomes if "lost write" in str(each.violations))
    with pytest.raises(AssertionError) as found:
        World(failed.seed, HASTE).check()
    report = str(found.value)
    assert f"seed {failed.seed}: " in report
    assert f"DANUBE_SEED_START={failed.seed} DANUBE_SEEDS=1 " in report
    assert "a postfix" in report or "middle" in report or "a prefix" in report
    assert "auditor of" in report, "the last part of what happened"
