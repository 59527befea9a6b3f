"""Before anything is served: are the metadata as new as what the journal and the segments hold?"""

from collections.abc import Iterable

from msgspec import Struct

from pydanube.metadata.restores import recovered_topics, restores
from pydanube.metadata.store import MetadataStore
from pydanube.model.ids import Offset, SubscriptionId, TopicId
from pydanube.observability.logging import get_logger
from pydanube.storage.errors import MetadataOlder
from pydanube.storage.journal.comparison import Abandoned, Compared, MissingTopic, Reach
from pydanube.storage.segments.catalog import SegmentCatalog, bounds_of, directory_of
from pydanube.storage.segments.object_store import ObjectStore
from pydanube.storage.storage import Storage
from pydanube.topics.catalog import Catalog

_log = get_logger(__name__)


class LivingNames(Struct, frozen=True):
    """What the metadata know, by id."""

    topics: dict[TopicId, str]
    subscriptions: set[SubscriptionId]


async def settle_what_is_known(
    store: MetadataStore,
    catalog: Catalog,
    storage: Storage,
    segments: SegmentCatalog,
    objects: ObjectStore,
    *,
    alone: bool,
) -> None:
    """Let the storage forget what was deleted; MetadataOlder, and nothing forgotten, if it is not.

    Afterwards ids that journal and segments have seen are not given again, and the journal notes
    what it gets to know.
    """
    living = living_names(catalog)
    never_again(catalog, storage)
    compared = storage.compare(living.topics.keys(), living.subscriptions, reach_of(store))
    missing = [describe_topic(each) for each in compared.topics]
    missing += [describe_topic(each) for each in await _newer_by_id(catalog, compared)]
    missing += [f"where {living.topics[each.id]} is served since" for each in compared.moved]
    missing += [f"subscription {each.name} (id {each.id})" for each in compared.subscriptions]
    missing += await _unlisted_segments(
        storage, segments, objects, living.topics, everywhere=storage.is_new and alone
    )
    missing += [
        f"what journals and segments have got since revision {each.revision}, whose copy was "
        "restored and not yet compared with them"
        for each in restores(store)
        if not each.is_compared
    ]
    if missing:
        raise MetadataOlder(missing)
    if compared.is_ahead:
        _log.warning(
            "the metadata are older than the journal; policies and schemas that "
            "changed since then have their old values"
        )
    storage.keep_only({*living.topics, *compared.copies}, living.subscriptions)
    storage.knowing.follow(lambda: store.revision)


def living_names(catalog: Catalog) -> LivingNames:
    """Return all topics that are not being deleted, and their subscriptions."""
    live = [(name, record) for name, record in catalog.topics() if not record.deleting]
    return LivingNames(
        {record.id: name for name, record in live},
        {one.id for name, _ in live for _, one in catalog.subscriptions(name)},
    )


def reach_of(store: MetadataStore) -> Reach:
    """Return how far the metadata are."""
    return Reach(
        revision=store.revision,
        recovered=recovered_topics(store),
        abandoned=tuple(Abandoned(each.revision, each.goes_on_behind) for each in restores(store)),
    )


def never_again(catalog: Catalog, storage: Storage) -> None:
    """Let no id be given that the journal has ever held."""
    topic_id, subscription_id = storage.ids_given
    catalog.topic_ids.never_again(topic_id)
    catalog.subscription_ids.never_again(subscription_id)


def describe_topic(topic: MissingTopic) -> str:
    """Name a topic and what the journal has of it."""
    name = topic.known.name if topic.known is not None else "of unknown name"
    held = f"offsets {topic.first} to {topic.end - 1}" if topic.end > topic.first else "no messages"
    return f"topic {name} (id {topic.id}, {held} in the journal)"


async def _newer_by_id(catalog: Catalog, compared: Compared) -> Iterable[MissingTopic]:
    """Return those of a journal without notes whose ids the metadata have not given yet."""
    if not compared.doubtful:
        return ()
    given = await catalog.metadata_have_given()
    return [each for each in compared.doubtful if each.id >= given]


async def _unlisted_segments(
    storage: Storage,
    segments: SegmentCatalog,
    objects: ObjectStore,
    topics: dict[TopicId, str],
    *,
    everywhere: bool,
) -> list[str]:
    """Return topics whose segments reach further than the catalogue says.

    A listing costs, so it is made where something is amiss: where the journal begins behind the
    end of the catalogue, or is new although there are topics.
    """
    needed = storage.first_needed()
    found = []
    for topic_id, name in topics.items():
        frontier = segments.frontier(name, topic_id)
        end = frontier.end if frontier is not None else Offset(0)
        begins = needed.get(topic_id, Offset(0))
        if begins <= end and not everywhere:
            continue
        keys = await objects.list(directory_of(name, topic_id))
        reached = max((bounds[1] for key in keys if (bounds := bounds_of(key))), default=0)
        if reached > end:
            found.append(f"segments of {name} with offsets {end} to {reached - 1}")
    return found
