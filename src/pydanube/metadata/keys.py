"""Where things lie in the metadata: the key space, as functions.

Topic names are checked names such as /default/orders and enter keys as they are. Names that
clients choose freely (subscriptions, producers, consumers) are percent-encoded, so that whatever
they hold they are one part of a key. Functions named in the plural, and constants, are prefixes.
"""

from urllib.parse import quote, unquote

from pydanube.model.ids import BrokerId, TopicId
from pydanube.model.names import namespace_of

CLUSTERS = "/cluster/"
CLUSTER_LEADER = "/cluster/leader"
CLUSTER_ELECTION = "/cluster/election"
"""Held by the leader where the store has none of its own."""
REGISTRATIONS = "/cluster/register/"
UNASSIGNED_TOPICS = "/cluster/unassigned/"
BROKERS = "/cluster/brokers/"
HANDOVERS = "/cluster/handover/"
REPLICAS = "/cluster/replicas/"
RESTORES = "/cluster/restores/"
RECOVERED = "/cluster/recovered/"
LOAD_REPORTS = "/cluster/load/"
REBALANCING_HISTORY = "/cluster/rebalancing_history/"
NAMESPACES = "/namespaces/"
TOPICS = "/topics/"
SCHEMA_INDEX = "/schemas/_index/by_id/"

READ_BARRIER = "/barriers/read"
"""Written to learn how far the store has come, where it cannot be asked."""

TOPIC_ID_COUNTER = "/counters/topic_id"
SUBSCRIPTION_ID_COUNTER = "/counters/subscription_id"
EPOCH_COUNTER = "/counters/epoch"
SCHEMA_ID_COUNTER = "/schemas/_global/next_schema_id"


def restore(revision: int) -> str:
    """Hold that the metadata went on from a copy of this revision."""
    return f"{RESTORES}{revision:020}"


def recovered(topic_id: TopicId) -> str:
    """Hold up to which epoch a topic was brought in from journals and segments."""
    return f"{RECOVERED}{topic_id}"


def cluster(name: str) -> str:
    """Mark that the cluster of this name exists."""
    return f"{CLUSTERS}{encode_name(name)}"


def registration(broker: BrokerId) -> str:
    """Hold a living broker's addresses; bound to its lease."""
    return f"{REGISTRATIONS}{broker}"


def broker_state(broker: BrokerId) -> str:
    """Hold whether a broker is active, draining or drained."""
    return f"/cluster/brokers/{broker}/state"


def assignments(broker: BrokerId) -> str:
    """Hold the topics a broker serves, beside its state."""
    return f"/cluster/brokers/{broker}/"


def assignment(broker: BrokerId, topic: str) -> str:
    """Give a topic to a broker."""
    return f"/cluster/brokers/{broker}{topic}"


def assigned_topic(broker: BrokerId, key: str) -> str | None:
    """Return the topic that an entry of `assignments` gives to the broker, None for its state."""
    topic = key.removeprefix(f"{BROKERS}{broker}")
    return topic if topic.count("/") == 2 else None


def unassigned_topic(topic: str) -> str:
    """Mark a topic that waits for a broker, with the reason."""
    return f"/cluster/unassigned{topic}"


def handover(topic: str) -> str:
    """Hold what a topic's last owner left behind when it let go in order."""
    return f"/cluster/handover{topic}"


def replicas(topic: str) -> str:
    """Hold in whose journals a topic's newest messages are."""
    return f"/cluster/replicas{topic}"


def load_report(broker: BrokerId) -> str:
    """Hold what a broker last said about its load."""
    return f"{LOAD_REPORTS}{broker}"


def rebalancing_move(at_ms: int, number: int) -> str:
    """Hold the record of one move, by its second; the number parts moves of one second."""
    return f"{REBALANCING_HISTORY}{at_ms // 1000:010}-{number:010}"


def namespace_policy(namespace: str) -> str:
    """Hold a namespace's policies."""
    return f"{NAMESPACES}{namespace}/policy"


def namespace_of_policy(key: str) -> str | None:
    """Return the namespace whose policies a key below `NAMESPACES` holds, None for others."""
    namespace, _, rest = key.removeprefix(NAMESPACES).partition("/")
    return namespace if rest == "policy" else None


def namespace_topics(namespace: str) -> str:
    """Hold the names of a namespace's topics."""
    return f"{NAMESPACES}{namespace}/topics/"


def namespace_topic(topic: str) -> str:
    """Mark that a topic belongs to its namespace."""
    return f"{NAMESPACES}{namespace_of(topic)}/topics{topic}"


def topic_of_namespace_topic(key: str) -> str:
    """Return the topic that an entry of `namespace_topics` stands for."""
    _, _, _, _, namespace, name = key.split("/")
    return f"/{namespace}/{name}"


def topic_record(topic: str) -> str:
    """Hold what a topic is."""
    return f"/topics{topic}"


def topic_parts(topic: str) -> str:
    """Hold everything below a topic: its policies, producers and subscriptions."""
    return f"/topics{topic}/"


def topic_delivery(topic: str) -> str:
    """Hold the topic's dispatch strategy."""
    return f"/topics{topic}/delivery"


def topic_policy(topic: str) -> str:
    """Hold the topic's own policies."""
    return f"/topics{topic}/policy"


def producers(topic: str) -> str:
    """Hold the topic's producers."""
    return f"/topics{topic}/producers/"


def producer(topic: str, name: str) -> str:
    """Hold one producer's record."""
    return f"{producers(topic)}{encode_name(name)}"


def subscriptions(topic: str) -> str:
    """Hold the topic's subscriptions and, below each, its parts; see `name_directly_below`."""
    return f"/topics{topic}/subscriptions/"


def subscription(topic: str, name: str) -> str:
    """Hold a subscription's options."""
    return f"{subscriptions(topic)}{encode_name(name)}"


def subscription_parts(topic: str, name: str) -> str:
    """Hold everything below a subscription."""
    return f"{subscription(topic, name)}/"


def subscription_cursor(topic: str, name: str) -> str:
    """Hold how far the subscription had come when its topic was handed over."""
    return f"{subscription(topic, name)}/cursor"


def subscription_failure_policy(topic: str, name: str) -> str:
    """Hold what happens to messages that are not acknowledged."""
    return f"{subscription(topic, name)}/failure_policy"


def subscription_dispatch_config(topic: str, name: str) -> str:
    """Hold the subscription's limits on unacknowledged messages."""
    return f"{subscription(topic, name)}/dispatch_config"


def consumers(topic: str, subscription_name: str) -> str:
    """Hold the subscription's consumers."""
    return f"{subscription(topic, subscription_name)}/consumers/"


def consumer(topic: str, subscription_name: str, name: str) -> str:
    """Hold one consumer's record."""
    return f"{consumers(topic, subscription_name)}{encode_name(name)}"


def topic_of_consumer(key: str) -> str | None:
    """Return the topic of the consumer that a key below `TOPICS` holds, None for other keys."""
    parts = key.split("/")
    if len(parts) != 8 or parts[6] != "consumers":
        return None
    return f"/{parts[2]}/{parts[3]}"


def segments(prefix: str, topic: str) -> str:
    """Hold a topic's catalogue entries; `prefix` is the configured one."""
    return f"{prefix}/storage/topics{topic}/segments/"


def segment(prefix: str, topic: str, base: int) -> str:
    """Hold the catalogue entry of the segment that begins at an offset."""
    return f"{segments(prefix, topic)}{base:020}"


def segment_frontier(prefix: str, topic: str) -> str:
    """Hold how far a topic's catalogue entries reach."""
    return f"{prefix}/storage/topics{topic}/frontier"


def retired_objects(prefix: str) -> str:
    """Hold which objects of the segment store are to be deleted, and when."""
    return f"{prefix}/storage/retired/"


def retired_object(prefix: str, due_ms: int, object_key: str) -> str:
    """Mark an object that is to be deleted at that time."""
    return f"{retired_objects(prefix)}{due_ms:020}/{encode_name(object_key)}"


def due_and_retired_object(prefix: str, key: str) -> tuple[int, str]:
    """Return what an entry of `retired_objects` says."""
    due, _, name = key.removeprefix(retired_objects(prefix)).partition("/")
    return int(due), unquote(name)


def schema_id(number: int) -> str:
    """Hold which subject has an id."""
    return f"{SCHEMA_INDEX}{number:020}"


def subject(name: str) -> str:
    """Hold a subject and the list of its versions."""
    return f"{_subject(name)}/metadata"


def subject_version(name: str, version: int) -> str:
    """Hold one version's definition."""
    return f"{_subject(name)}/versions/{version}"


def subject_topics(name: str) -> str:
    """Hold the topics that are bound to a subject."""
    return f"{_subject(name)}/topics/"


def subject_topic(name: str, topic: str) -> str:
    """Hold how a topic uses a subject."""
    return f"{subject_topics(name)}{encode_name(topic)}"


def _subject(name: str) -> str:
    part = encode_name(name)
    # Names beginning so are the registry's own.
    return f"/schemas/%5F{part[1:]}" if part.startswith("_") else f"/schemas/{part}"


def encode_name(name: str) -> str:
    """Return a name as one part of a key."""
    return quote(name, safe="")


def name_directly_below(prefix: str, key: str) -> str | None:
    """Return the decoded name of a key one level below the prefix, None for deeper ones."""
    part = key.removeprefix(prefix)
    return None if "/" in part else unquote(part)
