"""What descriptors, tickets, actions and app_metadata say: JSON objects, documented for users in
docs/reference/flight.md. A field that is not known is refused by name.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from pydanube.errors import InvalidRequest
from pydanube.model.policies import WINDOW_MAX
from pydanube.model.standing import SubscriptionStanding
from pydanube.wire.flight.framing import COMMAND, PATH, Descriptor

Json = TypeVar("Json", bound=Struct)

OffsetNumber = Annotated[int, Meta(ge=0, le=2**63 - 1)]
SequenceNumber = Annotated[int, Meta(ge=0)]
Milliseconds = Annotated[int, Meta(ge=0, le=2**63 - 1)]
OffsetRange = tuple[OffsetNumber, OffsetNumber]
"""[start, end): `end` is the next offset, never the last one."""
Position = OffsetNumber | Literal["earliest", "latest"]

CREDIT_MAX = 1_000_000
RANGES_MAX = 10_000
SEGMENTS_MAX = 10_000
TOPICS_MAX = 1_000
WAIT_MS_MAX = 60_000
PIECE_BYTES = 64 * 1024 * 1024

TopicNames = Annotated[list[str], Meta(max_length=TOPICS_MAX)]
Ranges = Annotated[list[OffsetRange], Meta(max_length=RANGES_MAX)]


# Publishing.


class PublishCommand(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The command of a DoPut's descriptor. A path of one topic name is short for its `topic`."""

    topic: str
    producer: str = "flight"
    dispatch: Literal["reliable", "non_reliable"] | None = None
    """What the topic must be; absent: what it is, and a new one is reliable."""
    access: Literal["shared", "exclusive"] = "shared"
    schema_subject: str | None = None
    """Of the schemas that the rows name; it binds a topic that has none."""
    session: SequenceNumber | None = None
    """Tells two lives of a producer apart, each of which numbers its batches for itself."""
    other_columns: Literal["refuse", "ignore"] = "refuse"
    memory: str | None = None
    """The name of memory that sender and broker share; batches may lie there."""


class MemoryPlace(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where in shared memory an Arrow message lies."""

    start: Annotated[int, Meta(ge=0)]
    length: Annotated[int, Meta(ge=16)]


class BatchNumbers(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The app_metadata of a published batch, if it has any."""

    first_sequence: SequenceNumber | None = None
    last_sequence: SequenceNumber | None = None
    """Absent: the rows are numbered one by one from the first."""
    digest: SequenceNumber | None = None
    previous_sequence: SequenceNumber | None = None
    """Of the batch that must be stored before; absent: the last of the one before on the stream."""
    place: MemoryPlace | None = None
    """Where the batch lies, if it is not in the message."""


class PutAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The app_metadata of a PutResult."""

    result: Literal["applied", "already_applied", "overlap"]
    rows: int
    offset: int | None = None
    """Of the batch's first row."""
    last_sequence: int | None = None
    """Of an overlap: what lies above must be sent again."""


# Reading.


class Ticket(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What DoGet reads. A ticket that is no JSON object is short for its `topic`."""

    topic: str
    id: str | None = None
    """Of the topic; one that was deleted and created anew has another."""
    from_: Position = field(default="earliest", name="from")
    to: Position = "latest"
    missing: Literal["refuse", "skip"] = "refuse"
    """What to do about offsets that hold nothing any more."""


class PlanCommand(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The command of GetFlightInfo's descriptor. A path of one topic name is its `topic`."""

    topic: str | None = None
    """A topic, or the base of a partitioned one."""
    pattern: str | None = None
    """Instead of a topic: a regular expression over whole names, of partitioned topics the base."""
    from_: Position = field(default="earliest", name="from")
    to: Position = "latest"
    from_time_ms: Milliseconds | None = None
    to_time_ms: Milliseconds | None = None
    ranges: Annotated[dict[str, OffsetRange], Meta(max_length=TOPICS_MAX)] | None = None
    """Offsets per partition, by their full names; others are left out."""
    piece_bytes: Annotated[int, Meta(ge=1)] = PIECE_BYTES
    """About what one endpoint shall hold."""


class BatchPlace(Struct, frozen=True):
    """The app_metadata of a batch that DoGet sends."""

    offset: int


# Consuming.


class SubscribeCommand(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a DoExchange begins: the command of its descriptor."""

    topic: str
    subscription: str
    consumer: str
    type: Literal["exclusive", "shared", "failover", "key_shared"] = "shared"
    start_position: str | None = None
    key_filters: tuple[str, ...] = ()
    credit: Annotated[int, Meta(ge=0, le=CREDIT_MAX)] = 0
    window: Annotated[int, Meta(ge=1, le=WINDOW_MAX)] = WINDOW_MAX
    """How many rows may be unacked in the subscription, unless an operator has set it."""


class ConsumerSays(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The app_metadata of what a consumer sends afterwards."""

    credit: Annotated[int, Meta(ge=0, le=CREDIT_MAX)] = 0
    """So many more rows may be sent."""
    ack: Ranges = []
    ack_until: OffsetNumber | None = None
    """Acks all that this stream has been sent below."""
    nack: Ranges = []
    delay_ms: Milliseconds = 0
    """Of the nack."""
    reason: str | None = None
    """Of the nack."""
    mark: str | None = None
    """Of the deliveries that `ack` and `nack` are about; without it, those of this stream."""
    id: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """To be sent back once the acks are durable."""


class Delivered(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The app_metadata of a batch that a consumer is sent."""

    offset: int | None = None
    """Of the first row; best-effort topics have none."""
    attempt: int
    mark: str | None = None
    """To be given back with acks and nacks; best-effort topics and old brokers send none."""


class AcksDurable(Struct, frozen=True, kw_only=True):
    """The app_metadata of a message without a batch."""

    acked: int
    """The id of what is durable now."""


# Actions.


class FrontierAction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `frontier`."""

    topics: TopicNames = []
    """Topics, or bases of partitioned topics."""
    pattern: str | None = None
    """Instead of topics: as in a plan."""
    after: dict[str, OffsetNumber] = {}
    """What the caller knows; with `wait_ms`, the answer waits until one topic has more."""
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0


class TopicFrontier(Struct, frozen=True, kw_only=True):
    """One topic of the answer: readers find offsets from `earliest` up to before `frontier`."""

    id: str
    earliest: int
    frontier: int
    mean_row_bytes: int


class OffsetsAction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `offsets`."""

    topics: TopicNames = []
    """Topics, or bases of partitioned topics."""
    pattern: str | None = None
    """Instead of topics: as in a plan."""
    time_ms: Milliseconds


class TopicOffset(Struct, frozen=True, kw_only=True):
    """One topic of the answer: the first message of that time or later, or the next one."""

    id: str
    offset: int
    earliest: int
    frontier: int


class LocateAction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `locate`."""

    topics: TopicNames
    """Topics, or bases of partitioned topics."""


class TopicPlace(Struct, frozen=True, kw_only=True):
    """One topic of the answer."""

    location: str | None
    """Of the broker that serves it; None while none does."""
    here: bool
    """Whether that is the broker that was asked."""


class LocateAnswer(Struct, frozen=True, kw_only=True):
    """What `locate` answers, by topic or partition."""

    topics: dict[str, TopicPlace]


class CursorAction(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The body of `cursor.create`, `.lease`, `.advance`, `.get`, and of `seek`.

    Of the fields that say where it is about, one is given: `topic`, `topics` or `positions`.
    """

    subscription: str
    topic: str | None = None
    """A topic or one partition; the base of a partitioned topic means all its partitions."""
    topics: TopicNames = []
    positions: Annotated[dict[str, Position], Meta(max_length=TOPICS_MAX)] | None = None
    """A vector: by topic or partition, where its cursor shall be."""
    position: Position | None = None
    """Of every topic; an offset of one topic only."""
    time_ms: Milliseconds | None = None
    """Instead of a position: the first message of that time or later."""
    existing: Literal["refuse", "keep"] = "refuse"
    """Of `cursor.create`: whether cursors that are there stay as they are."""
    holder: str | None = None
    """Who holds the cursor: nobody else can advance it, until another one takes the lease."""
    ttl_ms: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    """Of the lease: how long history is held while the cursor is not advanced."""
    hold: bool = True
    """Of the lease: whether history the cursor has not passed is held."""
    marks: dict[str, str] = {}
    """Of `cursor.advance`: by topic or partition, the mark of the cursor that is meant."""


class CursorAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a cursor stands: everything below is settled."""

    topic: str
    subscription: str
    position: int
    frontier: int
    id: str
    """Of the topic."""
    earliest: int
    holder: str | None = None
    ttl_ms: int | None = None
    holds: bool
    """Whether history from `position` on stays because of it."""
    mark: str | None = None
    """Of this life of the cursor: dropped and made again, it has another."""


class SubscriptionsAction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `subscriptions`."""

    topics: TopicNames = []
    """Topics, or bases of partitioned topics."""
    pattern: str | None = None
    """Instead of topics: as in a plan."""
    subscription: str | None = None
    """Only the one of that name."""


class TopicSubscriptions(Struct, frozen=True, kw_only=True):
    """One topic of the answer."""

    subscriptions: list[SubscriptionStanding]
    durability: str | None = None
    """fsync, os or memory: what an acknowledgement of the topic means; null if it keeps nothing."""


class SubscriptionsAnswer(Struct, frozen=True, kw_only=True):
    """What `subscriptions` answers, by topic or partition; those that nobody serves are absent."""

    topics: dict[str, TopicSubscriptions]


class SetPropertyAction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `property.set`."""

    topic: str
    """A topic, or the base of a partitioned one."""
    name: str
    value: str | None
    """None takes the property away."""


class GetPropertyAction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `property.get`."""

    name: str
    pattern: str = ".*"
    """As in a plan: which topics to look at."""


class PropertyAnswer(Struct, frozen=True, kw_only=True):
    """What topics keep, by base name; those that keep nothing under the name are absent."""

    topics: dict[str, str]


class ShareAction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of the action `share`."""

    memory: str


class ShareAnswer(Struct, frozen=True, kw_only=True):
    """Its answer."""

    readable: bool
    """Whether a DoPut to this broker may name that memory."""


class ProducerAction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `producer`."""

    topic: str
    producer: str
    session: SequenceNumber | None = None
    """As in the DoPut: each life of a producer counts for itself."""


class ProducerAnswer(Struct, frozen=True, kw_only=True):
    """A producer's last numbered batch, or nulls while it has none."""

    first_sequence: int | None = None
    last_sequence: int | None = None
    digest: int | None = None
    offset: int | None = None
    rows: int | None = None


class ListSegmentsAction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `segments.list`."""

    topic: str
    """A topic, or the base of a partitioned one."""


class ListedSegment(Struct, frozen=True, kw_only=True):
    """One segment of the answer."""

    key: str
    """Below the store's root; empty where messages are lost."""
    from_: int = field(name="from")
    to: int
    bytes: int
    raw_bytes: int
    """Before compression."""
    crc32c: int

    @property
    def is_lost(self) -> bool:
        """Whether these offsets hold nothing."""
        return not self.key


class ListedTopic(Struct, frozen=True, kw_only=True):
    """The segments of one physical topic, in offset order, all at one version of the catalogue."""

    id: str
    epoch: int
    """Of whoever owns the topic: segments that are made of these carry it."""
    segments: list[ListedSegment]


class ListSegmentsAnswer(Struct, frozen=True, kw_only=True):
    """What `segments.list` answers, by physical topic."""

    store: str
    """Where segments lie: the URL of a directory or bucket."""
    topics: dict[str, ListedTopic]


class JoinSegmentsAction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `segments.join`: what a joined object is, and what it takes the place of."""

    topic: str
    """A physical one."""
    id: str
    """Of the topic; one that was deleted and created anew has another."""
    keys: Annotated[list[str], Meta(min_length=2, max_length=SEGMENTS_MAX)]
    """The segments it was made of, all neighbours, in offset order."""
    object: str
    """Its name below the store's root, in the topic's directory."""
    bytes: Annotated[int, Meta(ge=1)]
    crc32c: Annotated[int, Meta(ge=0, lt=2**32)]


class JoinSegmentsAnswer(Struct, frozen=True, kw_only=True):
    """The segment that the topic has now."""

    key: str
    from_: int = field(name="from")
    to: int
    bytes: int


# What topics tell of themselves.


class TopicNotes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The app_metadata of a FlightInfo."""

    topic: str
    """As it was asked for; a pattern for many."""
    dispatch: Literal["reliable", "non_reliable"]
    partitions: list[str]
    """The physical topics; the topic itself if it has no partitions."""
    ids: dict[str, str] = {}
    """Of a plan: the id of each of them that is read."""
    ranges: dict[str, OffsetRange] = {}
    """Of a plan: what is read of each, fixed at one moment."""
    store: str | None = None
    """Where segments lie: the URL of a directory or bucket."""


class PieceNotes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The app_metadata of an endpoint."""

    topic: str
    from_: int = field(name="from")
    to: int
    rows: int
    bytes: int
    """About."""
    segment: str | None = None
    """The key of the segment that holds all of it, if one does."""


# Reading and writing them.


def encode(message: Struct) -> bytes:
    """Return the JSON of a message."""
    return msgspec.json.encode(message)


def decode(kind: type[Json], data: bytes, what: str) -> Json:
    """Read a JSON object; InvalidRequest names `what` is wrong and where."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{what} must be a JSON object: {error}") from None


def decode_metadata(kind: type[Json], data: bytes, what: str) -> Json:
    """Read app_metadata, which may be empty."""
    return decode(kind, data or b"{}", what)


def command_of(kind: type[Json], descriptor: Descriptor, what: str) -> Json:
    """Read the command of a descriptor; a path of one name is a command of that topic."""
    if descriptor.kind == COMMAND:
        return decode(kind, descriptor.command, f"the command to {what}")
    if descriptor.kind == PATH and len(descriptor.path) == 1:
        return _of_topic(kind, descriptor.path[0], what)
    raise InvalidRequest(
        f"to {what}, give a descriptor whose path is one topic name, such as /default/orders, "
        "or whose command is a JSON object"
    )


def ticket_of(data: bytes) -> Ticket:
    """Read a ticket: a JSON object, or a topic's name."""
    if data.startswith(b"{"):
        return decode(Ticket, data, "the ticket")
    try:
        return Ticket(topic=data.decode())
    except UnicodeDecodeError:
        raise InvalidRequest("the ticket is neither a topic's name nor a JSON object") from None


def _of_topic(kind: type[Json], topic: str, what: str) -> Json:
    fields: dict[str, Any] = {"topic": topic}
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            f"to {what}, give a descriptor whose command is a JSON object: {error}"
        ) from None
