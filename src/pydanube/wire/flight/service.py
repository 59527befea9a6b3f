"""The methods of Arrow Flight that the client port serves, and the actions behind one of them."""

from collections.abc import Mapping
from types import MappingProxyType

SERVICE = "arrow.flight.protocol.FlightService"

HANDSHAKE = f"/{SERVICE}/Handshake"
LIST_FLIGHTS = f"/{SERVICE}/ListFlights"
GET_FLIGHT_INFO = f"/{SERVICE}/GetFlightInfo"
GET_SCHEMA = f"/{SERVICE}/GetSchema"
DO_GET = f"/{SERVICE}/DoGet"
DO_PUT = f"/{SERVICE}/DoPut"
DO_EXCHANGE = f"/{SERVICE}/DoExchange"
DO_ACTION = f"/{SERVICE}/DoAction"
LIST_ACTIONS = f"/{SERVICE}/ListActions"

UNARY = (GET_FLIGHT_INFO, GET_SCHEMA)
STREAMS = (LIST_FLIGHTS, DO_GET, DO_ACTION, LIST_ACTIONS)
EXCHANGES = (HANDSHAKE, DO_PUT, DO_EXCHANGE)

ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        "frontier": "Where topics begin and end; waits for more if asked to.",
        "offsets": "The first offsets of a time, of one topic or many.",
        "locate": "Where topics are served: where to send DoGet, DoPut and DoExchange.",
        "cursor.create": "Create a named cursor on topics: a subscription without consumers.",
        "cursor.lease": "Take a cursor over, or renew its lease.",
        "cursor.advance": "Move a cursor forward, durably.",
        "cursor.get": "Tell where a cursor or subscription stands.",
        "subscriptions": "Tell how subscriptions get on: blocked, stalled, lag, failure policy.",
        "producer": "Tell the last sequence a producer has stored on a topic.",
        "share": "Tell whether this broker can read memory of a process, for batches of DoPut.",
        "property.set": "Keep a text with a topic, under a name.",
        "property.get": "Tell what topics keep under a name.",
        "segments.list": "Tell which segments topics have, and where they lie.",
        "segments.join": "Put a joined segment in the place of those it was made of.",
        "seek": "Move a subscription to another offset or time; its consumers go on from there.",
    }
)
"""What DoAction offers, with a line for whoever lists it."""
