"""Arrow Flight on the client port: the batch API, beside the API of single messages."""

from collections.abc import AsyncIterator, Sequence
from typing import NoReturn

from pydanube.broker.servicers.flight_actions import FlightActions
from pydanube.broker.servicers.flight_consuming import FlightConsuming
from pydanube.broker.servicers.flight_parts import FlightParts
from pydanube.broker.servicers.flight_publishing import FlightPublishing
from pydanube.broker.servicers.flight_reading import FlightReading
from pydanube.broker.servicers.flight_topics import FlightTopics, Peers
from pydanube.observability.metrics import BrokerMetrics
from pydanube.runtime.clock import Clock
from pydanube.topics.manager import TopicManager
from pydanube.topics.registration import Registration
from pydanube.wire.calls import Body, Call, CallRefused, HandlerTable, StatusCode
from pydanube.wire.flight import service
from pydanube.wire.flight.framing import read_action, write_action_type, write_result
from pydanube.wire.flight.status import refusals

_SCHEMES = {"http": "grpc+tcp", "https": "grpc+tls"}


class FlightServicer:
    """Puts the methods of Flight on a handler table."""

    def __init__(
        self,
        topics: TopicManager,
        registration: Registration,
        clock: Clock,
        metrics: BrokerMetrics,
        connect_url: str,
        store: str,
        peers: Peers | None = None,
    ) -> None:
        self.parts = FlightParts(topics, registration, clock)
        """What other brokers ask this one."""
        everywhere = FlightTopics(topics, self.parts, clock, flight_location(connect_url), peers)
        self._reading = FlightReading(topics, everywhere, store)
        self._publishing = FlightPublishing(topics, registration, clock, metrics)
        self._consuming = FlightConsuming(registration, metrics)
        self._actions = FlightActions(everywhere, store)

    def register(self, table: HandlerTable) -> None:
        """Serve the methods of FlightService."""
        table.add_exchange(service.HANDSHAKE, self.handshake)
        table.add_stream(service.LIST_FLIGHTS, self._reading.list_flights)
        table.add_unary(service.GET_FLIGHT_INFO, self._reading.get_flight_info)
        table.add_unary(service.GET_SCHEMA, self._reading.get_schema)
        table.add_stream(service.DO_GET, self._reading.do_get)
        table.add_exchange(service.DO_PUT, self._publishing.do_put)
        table.add_exchange(service.DO_EXCHANGE, self._consuming.do_exchange)
        table.add_stream(service.DO_ACTION, self.do_action)
        table.add_stream(service.LIST_ACTIONS, self.list_actions)

    async def handshake(self, requests: AsyncIterator[Body], call: Call) -> NoReturn:
        """Refuse: there is nothing to shake hands about."""
        raise CallRefused(
            StatusCode.UNIMPLEMENTED, "this broker needs no handshake; make your calls without one"
        )

    async def do_action(self, data: bytes, call: Call) -> AsyncIterator[Sequence[bytes]]:
        """Carry out an action, and answer with one result."""
        with refusals():
            answer = await self._actions.run(*read_action(data))
        return _one_group([write_result(answer)])

    async def list_actions(self, data: bytes, call: Call) -> AsyncIterator[Sequence[bytes]]:
        """Name the actions there are."""
        return _one_group([write_action_type(*each) for each in service.ACTIONS.items()])


def flight_location(url: str) -> str:
    """Return the Flight location of a broker's URL."""
    scheme, _, rest = url.partition("://")
    return f"{_SCHEMES[scheme]}://{rest.rstrip('/')}"


async def _one_group(group: Sequence[bytes]) -> AsyncIterator[Sequence[bytes]]:
    yield group
