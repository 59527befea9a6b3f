"""Sends calls that concern a topic on to the broker that serves it.

Operators and tools talk to any broker. What only a topic's owner knows or may change is asked of
the owner, in the same words; a base with partitions on several brokers is asked piece by piece.
"""

from typing import Any
from urllib.parse import urlsplit

from pydanube.broker.peer_channels import Connect, PeerChannels
from pydanube.cluster.directory import Directory
from pydanube.errors import InvalidRequest
from pydanube.model.ids import BrokerId
from pydanube.topics.manager import TopicManager
from pydanube.wire.calls import Call, HandlerTable, UnaryHandler
from pydanube.wire.danube import services
from pydanube.wire.danube.services import Method

FORWARD_SECONDS = 10.0
LEADER_SECONDS = 300.0
"""What the leader does may take its time: it moves topics."""
FORWARDED = "x-danube-forwarded"
"""A call that came this way goes no further, whatever its receiver believes."""

_TOPIC_FIELDS: tuple[tuple[Method[Any, Any], str], ...] = (
    (services.LIST_SUBSCRIPTIONS, "name"),
    (services.UNSUBSCRIBE, "topic"),
    (services.SET_SUBSCRIPTION_FAILURE_POLICY, "topic"),
    (services.GET_SUBSCRIPTION_FAILURE_POLICY, "topic"),
    (services.SET_SUBSCRIPTION_DISPATCH_CONFIG, "topic"),
    (services.GET_SUBSCRIPTION_DISPATCH_CONFIG, "topic"),
    (services.DESCRIBE_TOPIC, "name"),
    (services.SEEK, "topic"),
    (services.LEAVE_SUBSCRIPTION, "topic"),
    (services.UPDATE_FAILURE_POLICY, "topic"),
    (services.SET_MESSAGE_TTL, "topic"),
    (services.SET_RETENTION, "topic"),
    (services.SET_REPLICAS, "topic"),
    (services.GET_RETENTION, "topic"),
    (services.CONFIGURE_TOPIC_SCHEMA, "topic_name"),
    (services.UPDATE_TOPIC_VALIDATION_POLICY, "topic_name"),
    (services.GET_TOPIC_SCHEMA_CONFIG, "topic_name"),
)

_TO_LEADER: tuple[Method[Any, Any], ...] = (services.TRIGGER_REBALANCE,)


class Forwarding:
    """Wraps handlers so that each call reaches the owner of its topic."""

    def __init__(
        self, topics: TopicManager, directory: Directory, me: BrokerId, connect: Connect
    ) -> None:
        self._topics = topics
        self._directory = directory
        self._me = me
        self._channels = PeerChannels(connect)

    def wrap(self, table: HandlerTable) -> None:
        """Put itself before those handlers of a table that concern one topic."""
        for method, field in _TOPIC_FIELDS:
            handler = table.unary.get(method.path)
            if handler is not None:
                table.unary[method.path] = self._forwarding(method, field, handler)
        for method in _TO_LEADER:
            handler = table.unary.get(method.path)
            if handler is not None:
                table.unary[method.path] = self._to_leader(method, handler)

    async def close(self) -> None:
        """Release all connections."""
        await self._channels.close()

    def _forwarding(self, method: Method[Any, Any], field: str, here: UnaryHandler) -> UnaryHandler:
        async def serve(request: bytes, call: Call) -> bytes:
            if FORWARDED in call.metadata:
                return await here(request, call)
            parsed = method.request.FromString(request)
            asked = getattr(parsed, field)
            places = self._places(asked)
            if not any(places.values()):
                return await here(request, call)
            answer = None
            for name, address in places.items():
                setattr(parsed, field, name)
                piece = parsed.SerializeToString()
                reply = await (
                    here(piece, call) if address is None else self._ask(address, method, piece)
                )
                if answer is None:
                    answer = method.response.FromString(reply)
                else:
                    answer.MergeFrom(method.response.FromString(reply))
            assert answer is not None
            if len(places) > 1:
                _as_of_one_topic(answer, asked, len(places))
            merged: bytes = answer.SerializeToString()
            return merged

        return serve

    def _to_leader(self, method: Method[Any, Any], here: UnaryHandler) -> UnaryHandler:
        async def serve(request: bytes, call: Call) -> bytes:
            leader = self._directory.view.leader
            record = self._directory.record_of(leader) if leader is not None else None
            if FORWARDED in call.metadata or record is None or leader == self._me:
                return await here(request, call)
            address = urlsplit(record.admin_url).netloc
            return await self._ask(address, method, request, LEADER_SECONDS)

        return serve

    def _places(self, topic: str) -> dict[str, str | None]:
        """Return each physical topic meant, with the address of its owner; None: this broker."""
        try:
            names = self._topics.partitions(topic)
        except InvalidRequest:
            return {}  # The handler says what is wrong with it.
        return {name: self._address_of(name) for name in names}

    def _address_of(self, topic: str) -> str | None:
        owner = self._directory.owner_of(topic)
        if owner is None or owner == self._me:
            return None
        record = self._directory.record_of(owner)
        return urlsplit(record.admin_url).netloc if record is not None else None

    async def _ask(
        self,
        address: str,
        method: Method[Any, Any],
        request: bytes,
        seconds_max: float = FORWARD_SECONDS,
    ) -> bytes:
        return await self._channels.to(address).unary(
            method.path,
            request,
            metadata={FORWARDED: "1"},
            timeout_seconds=seconds_max,
        )


def _as_of_one_topic(answer: Any, base: str, partitions: int) -> None:  # noqa: ANN401  # A message.
    """Let what all partitions have told speak of their base, and name each subscription once."""
    known = answer.DESCRIPTOR.fields_by_name
    if "subscriptions" in known:
        names = sorted(set(answer.subscriptions))
        del answer.subscriptions[:]
        answer.subscriptions.extend(names)
    if "partitions" in known:
        answer.name, answer.partitions = base, partitions
