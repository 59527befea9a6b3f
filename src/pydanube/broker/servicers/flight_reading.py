"""Flight for readers: which topics there are, how to read a range of one, and the reading."""

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import pairwise

from msgspec import structs

from pydanube.broker.servicers.flight_plan import (
    PlannedPiece,
    check_command,
    check_id,
    check_range,
    log_of,
    position_of,
)
from pydanube.broker.servicers.flight_questions import AskExtent, AskPlan, Extent, PlannedTopic
from pydanube.broker.servicers.flight_topics import FlightTopics, Told
from pydanube.broker.servicers.pieces import read_pieces
from pydanube.errors import Corruption, InvalidRequest
from pydanube.model.ids import Offset
from pydanube.model.names import split_partition
from pydanube.storage.topic_log import Piece
from pydanube.topics.catalog import TopicRecord
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
_BASES_AT_ONCE = 1_024

Groups = AsyncIterator[Sequence[Body]]


class FlightReading:
    """Serves ListFlights, GetFlightInfo, GetSchema and DoGet. A caller that reads slowly costs
    one group of messages.

    What is listed and planned is that of all brokers; what DoGet reads, of this one.
    """

    def __init__(self, served: TopicManager, topics: FlightTopics, store: str) -> None:
        self._served = served
        self._topics = topics
        self._store = store

    async def list_flights(self, data: bytes, call: Call) -> Groups:
        """Name the topics that begin with the criteria's text."""
        with refusals():
            try:
                prefix = read_criteria(data).decode()
            except UnicodeDecodeError:
                raise InvalidRequest("the criteria are not the beginning of a name") from None
            parts: dict[str, list[tuple[str, TopicRecord]]] = {}
            for name, record in self._topics.known():
                base = _base_of(name)
                if base.startswith(prefix):
                    parts.setdefault(base, []).append((name, record))
            return self._infos(sorted(parts.items()))

    async def _infos(self, bases: Sequence[tuple[str, list[tuple[str, TopicRecord]]]]) -> Groups:
        with refusals():
            for first in range(0, len(bases), _BASES_AT_ONCE):
                some = bases[first : first + _BASES_AT_ONCE]
                names = [name for _, parts in some for name, _ in parts]
                extents = await self._topics.ask_once(AskExtent(names=names), Extent)
                infos = [self._whole(base, parts, extents) for base, parts in some]
                for at in range(0, len(infos), _INFOS_AT_ONCE):
                    yield [write_flight_info(info) for info in infos[at : at + _INFOS_AT_ONCE]]

    def _whole(
        self,
        base: str,
        parts: Sequence[tuple[str, TopicRecord]],
        extents: Mapping[str, Told[Extent]],
    ) -> FlightInfo:
        """Describe all of a topic, one endpoint per partition that is served at the moment."""
        names = sorted((name for name, _ in parts), key=_by_number)
        reliable = all(record.strategy == "Reliable" for _, record in parts)
        endpoints: list[Endpoint] = []
        rows = 0
        for name in names if reliable else ():
            told = extents.get(name)
            if told is None or told.answer.first is None or told.answer.end is None:
                rows = -1
                continue
            whole = PlannedPiece(told.answer.first, told.answer.end, -1)
            endpoints.append(_endpoint(name, told.answer.id, whole, told.location))
            rows += whole.rows if rows >= 0 else 0
        return FlightInfo(
            schema=SCHEMA_MESSAGE,
            descriptor=Descriptor(PATH, path=(base,)),
            endpoints=endpoints,
            total_records=rows if reliable else -1,
            app_metadata=encode(self._notes(base, names, reliable=reliable)),
        )

    async def get_flight_info(self, data: bytes, call: Call) -> bytes:
        """Plan a read: one endpoint per piece, all of them fixed at this moment."""
        with refusals():
            descriptor = read_descriptor(data)
            command = command_of(PlanCommand, descriptor, "plan a read")
            names = [] if command.topic is None else [command.topic]
            chosen = self._topics.chosen(names, command.pattern)
            return write_flight_info(await self._plan(descriptor, command, chosen))

    async def _plan(
        self, descriptor: Descriptor, command: PlanCommand, names: list[str]
    ) -> FlightInfo:
        check_command(command, names)
        several = names != [command.topic]
        wanted = [name for name in names if command.ranges is None or name in command.ranges]
        question = AskPlan(names=wanted, command=command, several=several)
        planned = await self._topics.ask(question, PlannedTopic)
        pieces = [piece for told in planned.values() for piece in told.answer.pieces]
        notes = self._notes(command.topic or command.pattern or "", names, reliable=True)
        return FlightInfo(
            schema=SCHEMA_MESSAGE,
            descriptor=descriptor,
            endpoints=[
                _endpoint(name, told.answer.id, piece, told.location)
                for name, told in planned.items()
                for piece in told.answer.pieces
            ],
            total_records=sum(piece.rows for piece in pieces),
            total_bytes=sum(piece.bytes for piece in pieces),
            ordered=not several,
            app_metadata=encode(
                structs.replace(
                    notes,
                    ids={name: told.answer.id for name, told in planned.items()},
                    ranges={
                        name: (told.answer.start, told.answer.end) for name, told in planned.items()
                    },
                )
            ),
        )

    def _notes(self, name: str, partitions: list[str], *, reliable: bool) -> TopicNotes:
        return TopicNotes(
            topic=name,
            dispatch="reliable" if reliable else "non_reliable",
            partitions=partitions,
            store=self._store,
        )

    async def get_schema(self, data: bytes, call: Call) -> bytes:
        """Return the schema of a topic; all topics have the same."""
        with refusals():
            command = command_of(PlanCommand, read_descriptor(data), "get a schema")
            if command.topic is not None:
                self._topics.physical(command.topic)
            return write_schema_result(SCHEMA_MESSAGE)

    async def do_get(self, data: bytes, call: Call) -> Groups:
        """Read a range of a topic, without a subscription."""
        with refusals():
            ticket = ticket_of(read_ticket(data))
            topic = self._served.get(ticket.topic)
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
                    f"topic {topic.name} has no messages left at offsets {first} to before "
                    f'{after}; read around them, or set "missing": "skip"'
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


def _endpoint(topic: str, topic_id: str, piece: PlannedPiece, location: str) -> Endpoint:
    notes = PieceNotes(
        topic=topic,
        from_=piece.start,
        to=piece.end,
        rows=piece.rows,
        bytes=piece.bytes,
        segment=piece.segment,
    )
    ticket = Ticket(topic=topic, id=topic_id, from_=piece.start, to=piece.end)
    return Endpoint(ticket=encode(ticket), locations=[location], app_metadata=encode(notes))


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


def _by_number(name: str) -> tuple[str, int]:
    return split_partition(name) or (name, 0)
