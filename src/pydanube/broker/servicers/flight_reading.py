"""Flight for readers: which topics there are, how to read a range of one, and the reading."""

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import pairwise

from pydanube.broker.servicers.flight_plan import (
    PlannedPiece,
    bounds_of,
    check_command,
    check_id,
    check_range,
    log_of,
    mean_row_bytes,
    plan_pieces,
    planned_range,
    position_of,
    segments_of,
    topic_id,
)
from pydanube.broker.servicers.flight_topics import chosen_topics, physical_topics
from pydanube.broker.servicers.pieces import read_pieces
from pydanube.errors import Corruption, InvalidRequest
from pydanube.model.ids import Offset
from pydanube.model.names import split_partition
from pydanube.storage.topic_log import Piece
from pydanube.topics.manager import TopicManager
from pydanube.topics.topic import Topic
from pydanube.wire.calls import Body, Call
from pydanube.wire.flight.convert import (
    BATCH_BYTES_MAX,
    SCHEMA_DATA,
    SCHEMA_MESSAGE,
    rows_message,
)
from pydanube.wire.flight.descriptors import (
    BatchPlace,
    PieceNotes,
    PlanCommand,
    Ticket,
    TopicNotes,
    command_of,
    encode,
    ticket_of,
)
from pydanube.wire.flight.framing import (
    PATH,
    Descriptor,
    Endpoint,
    FlightInfo,
    flight_data,
    read_criteria,
    read_descriptor,
    read_ticket,
    write_flight_info,
    write_schema_result,
)
from pydanube.wire.flight.status import refusals

GROUP_BYTES_MAX = 1024 * 1024
"""About what is sent at once; more is read when the caller has taken it."""
_INFOS_AT_ONCE = 64

Groups = AsyncIterator[Sequence[Body]]


class FlightReading:
    """Serves ListFlights, GetFlightInfo, GetSchema and DoGet. A caller that reads slowly costs
    one group of messages.
    """

    def __init__(self, topics: TopicManager, location: str, store: str) -> None:
        self._topics = topics
        self._location = location
        self._store = store

    async def list_flights(self, data: bytes, call: Call) -> Groups:
        """Name the topics that begin with the criteria's text."""
        with refusals():
            try:
                prefix = read_criteria(data).decode()
            except UnicodeDecodeError:
                raise InvalidRequest("the criteria are not the beginning of a name") from None
            names = {_base_of(topic.name) for topic in self._topics}
            return self._infos(sorted(name for name in names if name.startswith(prefix)))

    async def _infos(self, names: Sequence[str]) -> Groups:
        for first in range(0, len(names), _INFOS_AT_ONCE):
            yield [
                write_flight_info(info)
                for name in names[first : first + _INFOS_AT_ONCE]
                if (info := self._whole(name)) is not None
            ]

    def _whole(self, name: str) -> FlightInfo | None:
        """Describe all of a topic, one endpoint per partition; None if it has just gone."""
        topics = [self._topics.get(each) for each in self._topics.partitions(name)]
        if not topics:
            return None
        wholes = [
            (topic, PlannedPiece(topic.log.first_offset, topic.log.durable_end, -1))
            for topic in topics
            if topic.log is not None
        ]
        rows = sum(whole.rows for _, whole in wholes) if wholes else -1
        return FlightInfo(
            schema=SCHEMA_MESSAGE,
            descriptor=Descriptor(PATH, path=(name,)),
            endpoints=[self._endpoint(topic, whole) for topic, whole in wholes],
            total_records=rows,
            app_metadata=self._notes(name, topics),
        )

    async def get_flight_info(self, data: bytes, call: Call) -> bytes:
        """Plan a read: one endpoint per piece, all of them fixed at this moment."""
        with refusals():
            descriptor = read_descriptor(data)
            command = command_of(PlanCommand, descriptor, "plan a read")
            names = [] if command.topic is None else [command.topic]
            topics = chosen_topics(self._topics, names, command.pattern)
            return write_flight_info(await self._plan(descriptor, command, topics))

    async def _plan(
        self, descriptor: Descriptor, command: PlanCommand, topics: list[Topic]
    ) -> FlightInfo:
        names = [topic.name for topic in topics]
        check_command(command, names)
        several = names != [command.topic]
        # All at one moment, before anything is waited for.
        bounds = [bounds_of(log_of(topic)) for topic in topics]
        planned: dict[str, tuple[int, int]] = {}
        endpoints: list[Endpoint] = []
        rows = size = 0
        for topic, bound in zip(topics, bounds, strict=True):
            wanted = await planned_range(topic, bound, command, several=several)
            if wanted is None:
                continue
            planned[topic.name] = wanted
            log = log_of(topic)
            row_bytes = await mean_row_bytes(log)
            pieces = plan_pieces(*wanted, row_bytes, command.piece_bytes, segments_of(log))
            endpoints += [self._endpoint(topic, piece) for piece in pieces]
            rows += sum(piece.rows for piece in pieces)
            size += sum(piece.bytes for piece in pieces)
        return FlightInfo(
            schema=SCHEMA_MESSAGE,
            descriptor=descriptor,
            endpoints=endpoints,
            total_records=rows,
            total_bytes=size,
            ordered=not several,
            app_metadata=self._notes(command.topic or command.pattern or "", topics, planned),
        )

    async def get_schema(self, data: bytes, call: Call) -> bytes:
        """Return the schema of a topic; all topics have the same."""
        with refusals():
            command = command_of(PlanCommand, read_descriptor(data), "get a schema")
            if command.topic is not None:
                physical_topics(self._topics, command.topic)
            return write_schema_result(SCHEMA_MESSAGE)

    async def do_get(self, data: bytes, call: Call) -> Groups:
        """Read a range of a topic, without a subscription."""
        with refusals():
            ticket = ticket_of(read_ticket(data))
            topic = self._topics.get(ticket.topic)
            check_id(topic, ticket.id)
            log = log_of(topic)
            start, end = check_range(
                topic, position_of(log, ticket.from_), position_of(log, ticket.to)
            )
            return self._read(topic, start, end, ticket)

    async def _read(self, topic: Topic, start: Offset, end: Offset, ticket: Ticket) -> Groups:
        def missing(first: Offset, after: Offset) -> None:
            if ticket.missing == "refuse":
                raise Corruption(
                    f"offsets {first} to before {after} of topic {topic.name} hold nothing any "
                    'more; read around them, or ask for "missing": "skip"'
                )

        with refusals():
            group: list[Body] = [SCHEMA_DATA]
            size = 0
            async for piece in read_pieces(log_of(topic), start, end, missing):
                for part in small_enough(piece):
                    message = rows_message(part.batch, part.first_row, part.end_row)
                    group.append(flight_data(message, encode(BatchPlace(part.start))))
                    size += len(message)
                    if size >= GROUP_BYTES_MAX:
                        yield group
                        group, size = [], 0
            if group:
                yield group

    def _notes(
        self,
        name: str,
        topics: Sequence[Topic],
        planned: Mapping[str, tuple[int, int]] | None = None,
    ) -> bytes:
        ranges = dict(planned or {})
        reliable = all(topic.is_reliable for topic in topics)
        return encode(
            TopicNotes(
                topic=name,
                dispatch="reliable" if reliable else "non_reliable",
                partitions=[topic.name for topic in topics],
                ids={topic.name: topic_id(topic) for topic in topics if topic.name in ranges},
                ranges=ranges,
                store=self._store,
            )
        )

    def _endpoint(self, topic: Topic, piece: PlannedPiece) -> Endpoint:
        notes = PieceNotes(
            topic=topic.name,
            from_=piece.start,
            to=piece.end,
            rows=piece.rows,
            bytes=piece.bytes,
            segment=piece.segment,
        )
        ticket = Ticket(topic=topic.name, id=topic_id(topic), from_=piece.start, to=piece.end)
        return Endpoint(
            ticket=encode(ticket), locations=[self._location], app_metadata=encode(notes)
        )


def small_enough(piece: Piece) -> list[Piece]:
    """Cut a piece of a large batch so that each part fits into one message, if its rows do."""
    share = len(piece.batch.data) * piece.count // piece.batch.count
    if share <= BATCH_BYTES_MAX or piece.count == 1:
        return [piece]
    parts = min(piece.count, -(-share // BATCH_BYTES_MAX))
    edges = [piece.first_row + piece.count * number // parts for number in range(parts + 1)]
    return [Piece(piece.base, piece.batch, low, high) for low, high in pairwise(edges)]


def _base_of(name: str) -> str:
    split = split_partition(name)
    return name if split is None else split[0]
