"""Brokers of a cluster answer for each other's topics: they ask and tell over the peers' port."""

import msgspec
from msgspec import Struct
from typing_extensions import override

from pydanube.broker.peer_channels import Connect, PeerChannels
from pydanube.broker.servicers.flight import flight_location
from pydanube.broker.servicers.flight_parts import FlightParts
from pydanube.broker.servicers.flight_questions import Question
from pydanube.broker.servicers.flight_topics import Peer, Peers
from pydanube.cluster.directory import Directory
from pydanube.errors import Conflict
from pydanube.model.ids import BrokerId
from pydanube.wire.calls import Call, CallRefused, HandlerTable, StatusCode
from pydanube.wire.danube.status import error_of
from pydanube.wire.flight.status import refusals

ASK = "/pydanube.Flight/Ask"


class Asked(Struct, frozen=True, array_like=True):
    """A question between brokers, and whom it is meant for."""

    cluster: str
    to: int
    question: Question


class FlightPeers(Peers):
    """Finds owners in the directory, and asks them."""

    def __init__(self, cluster: str, me: BrokerId, directory: Directory, connect: Connect) -> None:
        self._cluster = cluster
        self._me = me
        self._directory = directory
        self._channels = PeerChannels(connect)

    @override
    def owner_of(self, topic: str) -> Peer | None:
        owner = self._directory.owner_of(topic)
        record = self._directory.record_of(owner) if owner is not None else None
        if owner is None or owner == self._me or record is None:
            return None
        return Peer(owner, record.raft_address, flight_location(record.connect_url))

    @override
    async def ask(self, peer: Peer, question: Question, seconds_max: float) -> bytes:
        request = msgspec.msgpack.encode(Asked(self._cluster, peer.broker, question))
        try:
            return await self._channels.to(peer.address).unary(
                ASK, request, timeout_seconds=seconds_max
            )
        except CallRefused as refused:
            raise error_of(refused) from refused

    async def close(self) -> None:
        """Release all connections."""
        await self._channels.close()


class FlightPeerService:
    """Answers other brokers. Refuses those of another cluster, and calls meant for another."""

    def __init__(self, cluster: str, me: BrokerId, parts: FlightParts) -> None:
        self._cluster = cluster
        self._me = me
        self._parts = parts

    def add_to(self, table: HandlerTable) -> None:
        """Serve what brokers ask each other about topics."""
        table.add_unary(ASK, self._answer)

    async def _answer(self, request: bytes, call: Call) -> bytes:
        try:
            asked = msgspec.msgpack.decode(request, type=Asked)
        except msgspec.MsgspecError as error:
            raise CallRefused(
                StatusCode.INVALID_ARGUMENT, f"not a question between brokers: {error}"
            ) from None
        with refusals():
            if (asked.cluster, asked.to) != (self._cluster, self._me):
                raise Conflict(
                    f"this is broker {self._me} of cluster {self._cluster}, not {asked.to} of "
                    f"{asked.cluster}; check the brokers' addresses"
                )
            return msgspec.msgpack.encode(await self._parts.answer(asked.question))
