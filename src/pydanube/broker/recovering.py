"""Rebuilds entries of the metadata from a stopped broker's journal and from segments.

For metadata that are an older copy, or lost. Without `apply` nothing is changed, whatever is found.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from msgspec import Struct

from pydanube.broker.broker import PARSING_THREADS
from pydanube.broker.config import BrokerConfig
from pydanube.broker.identity import broker_identity
from pydanube.broker.metadata import OpenMetadata, Peers
from pydanube.broker.metadata_check import living_names, reach_of
from pydanube.broker.metadata_opening import open_metadata
from pydanube.broker.past_alone import heeding_a_past_alone
from pydanube.broker.recovery_plan import (
    FoundDirectory,
    NewSubscription,
    NewTopic,
    Situation,
    highest_ids,
    namespaces_of,
    plan_subscriptions,
    plan_topics,
)
from pydanube.broker.recovery_writing import Writing
from pydanube.errors import Conflict
from pydanube.metadata.local_import import local_state
from pydanube.metadata.memory_store import MemoryMetadataStore
from pydanube.metadata.store import MetadataStore
from pydanube.model.ids import BrokerId, Offset, SubscriptionId, TopicId
from pydanube.observability.logging import get_logger
from pydanube.runtime.machine import Machine
from pydanube.runtime.tasks import TaskScope
from pydanube.runtime.threads import WorkerThreads
from pydanube.storage.errors import JournalDamaged
from pydanube.storage.journal.comparison import Compared, MissingTopic, compare
from pydanube.storage.journal.contents import EarlierTopic, JournalContents
from pydanube.storage.journal.recovery import LOCK_NAME, survey_all
from pydanube.storage.journal.relabelling import Relabel, relabel
from pydanube.storage.journal.survey import Survey
from pydanube.storage.journal.tail_rewrite import finish_rewrite
from pydanube.storage.segments.catalog import directory_of, epoch_of
from pydanube.storage.segments.location import open_store
from pydanube.storage.segments.object_store import PROBE_DIRECTORY, ObjectStore
from pydanube.storage.segments.rebuilding import Chain, plan_chain
from pydanube.topics.catalog import Catalog
from pydanube.topics.segment_catalog import MetadataSegmentCatalog
from pydanube.wire.calls import HandlerTable

_log = get_logger(__name__)


class TopicLine(Struct, frozen=True, kw_only=True):
    """A topic that gets an entry."""

    topic: str
    id: int
    journal: str
    segments: str
    note: str


class SubscriptionLine(Struct, frozen=True, kw_only=True):
    """A subscription that gets an entry."""

    topic: str
    subscription: str
    id: int


class SegmentLine(Struct, frozen=True, kw_only=True):
    """Segments of a topic that get entries."""

    topic: str
    objects: int
    offsets: str


class TwiceLine(Struct, frozen=True, kw_only=True):
    """An earlier topic that shares its id with a later one, and gets an id of its own."""

    shared_id: int
    new_id: int
    offsets: str
    until_position: int


class RecoveryReport(Struct, frozen=True, kw_only=True):
    """What is missing in the metadata, and whether it was brought in."""

    applied: bool
    metadata_revision: int
    journal_has_seen_revision: int
    topics: list[TopicLine]
    subscriptions: list[SubscriptionLine]
    segments: list[SegmentLine]
    moved_here: list[str]
    """Topics that were last served by this broker; the metadata say another one."""
    ids_given_twice: list[TwiceLine]
    missing_objects: list[str]
    """Segments that the catalogue names and the store does not have; they are left as they are."""
    copies: list[str]
    """Journal files as they were."""
    left_alone: list[str]
    """What may be newer than the metadata or deleted: nothing tells. It stays in the journal."""

    @property
    def has_work(self) -> bool:
        """Whether anything is, or was, to be brought in."""
        return bool(
            self.topics
            or self.subscriptions
            or self.segments
            or self.moved_here
            or self.ids_given_twice
        )


class _Found(Struct, frozen=True, kw_only=True):
    survey: Survey
    compared: Compared
    situation: Situation
    topics: list[NewTopic]
    subscriptions: list[NewSubscription]
    chains: dict[tuple[str, TopicId], Chain]


async def recover_metadata(
    config: BrokerConfig,
    machine: Machine,
    peers: Peers | None,
    *,
    apply: bool,
    names: Mapping[TopicId, str],
    doubtful: bool = False,
) -> RecoveryReport:
    """Compare metadata, journal and segments, and bring in what the metadata lack if `apply`.

    The broker does not run. Conflict while it does, JournalDamaged if bytes are to be given up
    first; then nothing is changed. It may be repeated after a crash.
    """
    files, directory = machine.files, config.storage.local_wal_root
    await files.make_directory(directory)
    lock = await files.lock(f"{directory}/{LOCK_NAME}")
    if lock is None:
        raise Conflict(f"the journal in {directory} is in use; stop the broker first")
    tasks = TaskScope(lambda name, error: _log.error("a task failed", error=error, task=name))
    objects = open_store(config.storage, files)
    threads = WorkerThreads("recovery", PARSING_THREADS)
    try:
        async with _opened(config, machine, tasks, peers, apply=apply) as metadata:
            if apply:
                await finish_rewrite(files, directory)
            looking = _Looking(config, machine, metadata.store, objects, names, doubtful)
            found = await looking.look()
            writing = Writing(
                store=metadata.store,
                broker=metadata.broker if metadata.sharing is not None else None,
                prefix=config.storage.metadata_prefix,
                objects=objects,
                threads=threads,
                now_ms=machine.clock.now_ms(),
            )
            report = _report(found, metadata.store, applied=apply)
            if not apply:
                return report
            await _apply(writing, found)
            copies = await relabel(
                files, directory, found.survey.files, _relabels(found), machine.clock
            )
            return _report(found, metadata.store, applied=True, copies=copies)
    finally:
        await objects.close()
        threads.stop()
        await tasks.close()
        await lock.release()


@asynccontextmanager
async def _opened(
    config: BrokerConfig,
    machine: Machine,
    tasks: TaskScope,
    peers: Peers | None,
    *,
    apply: bool,
) -> AsyncIterator[OpenMetadata]:
    if config.is_clustered:
        config = await heeding_a_past_alone(config, machine.files)
    directory = config.meta_store.data_dir
    if not config.is_clustered and not apply:
        # A copy in memory: looking must not even tidy up.
        store = MemoryMetadataStore(machine.clock)
        if await machine.files.exists(directory):
            state = await local_state(machine.files, directory)
            if state is not None:
                store.become(state)
        opened = OpenMetadata(store=store, broker=BrokerId(0))
    else:
        if not config.is_clustered:
            await machine.files.make_directory(directory)
        url = f"http://{config.broker.client_address}"
        opened = await open_metadata(
            config, machine, tasks, peers, HandlerTable(), url, lambda raft: None
        )
        if not config.is_clustered:
            await broker_identity(machine, directory)
    try:
        yield opened
    finally:
        await opened.close()


class _Looking:
    """Finds out what there is; changes nothing."""

    def __init__(
        self,
        config: BrokerConfig,
        machine: Machine,
        store: MetadataStore,
        objects: ObjectStore,
        names: Mapping[TopicId, str],
        doubtful: bool,
    ) -> None:
        self._config = config
        self._machine = machine
        self._store = store
        self._objects = objects
        self._names = names
        self._doubtful = doubtful
        self._catalog = Catalog(store)
        self._segments = MetadataSegmentCatalog(store, config.storage.metadata_prefix)

    async def look(self) -> _Found:
        directory = self._config.storage.local_wal_root
        survey = await survey_all(self._machine.files, directory, tells_apart=True)
        contents = survey.contents
        if survey.damaged:
            raise JournalDamaged(directory, survey.damaged, contents.lost_offsets())
        contents.known.saw(contents.topics, contents.progress)
        living = living_names(self._catalog)
        compared = compare(
            contents, living.topics.keys(), living.subscriptions, reach_of(self._store)
        )
        retired = {each.key for each in self._segments.retired()}
        directories = [
            each
            for each in await self._directories()
            if living.topics.get(each.topic_id) != each.topic
            and directory_of(each.topic, each.topic_id) not in retired
        ]
        doubtful = compared.doubtful
        if not self._doubtful:
            given = await self._given(doubtful)
            doubtful = tuple(each for each in doubtful if each.id >= given)
        situation = Situation(
            names={name: record.id for name, record in self._catalog.topics()},
            subscriptions={
                (name, subscription)
                for name, _ in self._catalog.topics()
                for subscription, _ in self._catalog.subscriptions(name)
            },
            missing=(*compared.topics, *doubtful),
            missing_subscriptions=compared.subscriptions,
            earlier=self._own_ids(contents, directories, living.topics),
            directories=tuple(directories),
            given_names=self._names,
            now_ms=self._machine.clock.now_ms(),
        )
        topics = plan_topics(situation)
        return _Found(
            survey=survey,
            compared=compared,
            situation=situation,
            topics=topics,
            subscriptions=plan_subscriptions(situation, topics),
            chains=await self._chains(living.topics, topics),
        )

    async def _given(self, doubtful: tuple[MissingTopic, ...]) -> int:
        return await self._catalog.metadata_have_given() if doubtful else 0

    def _own_ids(
        self,
        contents: JournalContents,
        directories: list[FoundDirectory],
        living: Mapping[TopicId, str],
    ) -> dict[TopicId, EarlierTopic]:
        """Return which ids earlier topics get that share theirs with a later one."""
        after = max(
            contents.known.topic_id_max,
            *(each.topic_id for each in directories),
            *living,
            0,
        )
        earlier = contents.earlier or ()
        return {TopicId(after + 1 + n): each for n, each in enumerate(earlier)}

    async def _directories(self) -> list[FoundDirectory]:
        found = []
        for namespace in await self._objects.directories(""):
            if f"{namespace}/" == PROBE_DIRECTORY:
                continue
            for topic in await self._objects.directories(f"{namespace}/"):
                for number in await self._objects.directories(f"{namespace}/{topic}/"):
                    if number.isdecimal():
                        keys = await self._objects.list(f"{namespace}/{topic}/{number}/")
                        name = f"/{namespace}/{topic}"
                        found.append(FoundDirectory(name, TopicId(int(number)), tuple(keys)))
        return found

    async def _chains(
        self, living: Mapping[TopicId, str], topics: list[NewTopic]
    ) -> dict[tuple[str, TopicId], Chain]:
        """Return, for topics whose entries are not what the objects say, what they should be."""
        wanted = {(name, topic_id) for topic_id, name in living.items()}
        wanted |= {(each.name, each.record.id) for each in topics if each.from_segments}
        chains = {}
        for name, topic_id in sorted(wanted):
            frontier = self._segments.frontier(name, topic_id)
            keys = await self._objects.list(directory_of(name, topic_id))
            entries = self._segments.entries(name, topic_id)
            start = frontier.start if frontier is not None and frontier.end > 0 else None
            chain = plan_chain(keys, entries, start)
            if chain.new() or chain.missing:
                chains[name, topic_id] = chain
        return chains


async def _apply(writing: Writing, found: _Found) -> None:
    known = found.survey.contents.known
    epochs = [index.epoch for index in found.survey.contents.topics.values()]
    epochs += [epoch_of(link.key) or 0 for chain in found.chains.values() for link in chain.new()]
    given = TopicId(known.topic_id_max), SubscriptionId(known.subscription_id_max)
    await writing.go_on_behind(
        max(known.revision, *epochs, 0), highest_ids(found.situation, found.topics, given)
    )
    await writing.namespaces(namespaces_of(found.topics))
    for (name, topic_id), chain in found.chains.items():
        if chain.new():
            await writing.segments(name, topic_id, chain)
    for topic in found.topics:
        await writing.topic(topic)
    for subscription in found.subscriptions:
        await writing.subscription(subscription)
    name_of = {topic_id: name for name, topic_id in found.situation.names.items()}
    for moved in found.compared.moved:
        await writing.take_back(name_of[moved.id], moved)
    await writing.compared()


def _relabels(found: _Found) -> list[Relabel]:
    return [
        Relabel(each.topic_id, each.until, new_id)
        for new_id, each in found.situation.earlier.items()
    ]


def _report(
    found: _Found, store: MetadataStore, *, applied: bool, copies: list[str] | None = None
) -> RecoveryReport:
    name_of = {topic_id: name for name, topic_id in found.situation.names.items()}
    missing = {each.id for each in found.situation.missing}
    return RecoveryReport(
        applied=applied,
        metadata_revision=store.revision,
        journal_has_seen_revision=found.survey.contents.known.revision,
        topics=[
            TopicLine(
                topic=each.name,
                id=each.record.id,
                journal=_span(each.journal_first, each.journal_end),
                segments=_chain_span(found.chains.get((each.name, each.record.id))),
                note=each.note,
            )
            for each in found.topics
        ],
        subscriptions=[
            SubscriptionLine(topic=each.topic, subscription=each.name, id=each.record.id)
            for each in found.subscriptions
        ],
        segments=[
            SegmentLine(
                topic=name,
                objects=len(chain.new()),
                offsets=_span(chain.new()[0].base, chain.new()[-1].end),
            )
            for (name, _), chain in found.chains.items()
            if chain.new()
        ],
        moved_here=[name_of[each.id] for each in found.compared.moved],
        ids_given_twice=[
            TwiceLine(
                shared_id=each.topic_id,
                new_id=new_id,
                offsets=_span(each.index.first_offset, Offset(each.index.end)),
                until_position=each.until,
            )
            for new_id, each in found.situation.earlier.items()
        ],
        missing_objects=[entry.key for chain in found.chains.values() for entry in chain.missing],
        copies=copies or [],
        left_alone=[
            f"topic id {each.id}, {_span(each.first, each.end)}"
            for each in found.compared.doubtful
            if each.id not in missing
        ],
    )


def _chain_span(chain: Chain | None) -> str:
    return _span(chain.start, chain.end) if chain is not None else "-"


def _span(first: Offset, end: Offset) -> str:
    return f"{first} to {end - 1}" if end > first else "-"
