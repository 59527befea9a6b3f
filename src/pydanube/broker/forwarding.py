"""Sends calls that concern a topic on to the broker that serves it.

Operators and tools talk to any broker. What only a topic's owner knows or may change is asked of
the owner, in the same words; a base with partitions on several brokers is asked piece by piece.
Whatever broker is asked knows what was answered before at any other, and what was created is open.
"""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from pydanube.broker.peer_channels import Connect, PeerChannels
from pydanube.cluster.directory import Directory
from pydanube.cluster.readiness import LOOK_SECONDS, SETTLE_SECONDS, Readiness
from pydanube.errors import InvalidRequest
from pydanube.model.ids import BrokerId
from pydanube.topics.manager import TopicManager
from pydanube.wire.calls import Call, CallRefused, HandlerTable, StatusCode, UnaryHandler
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

_MAKES_OPEN: tuple[tuple[Method[Any, Any], str], ...] = (
    (services.CREATE_TOPIC, "name"),
    (services.CREATE_PARTITIONED_TOPIC, "base_name"),
    (services.UNLOAD_TOPIC, "name"),
)
"""What is answered once the topics concerned are open, at whatever brokers."""

_CAUGHT_UP = frozenset(
    {
        services.NAMESPACE_ADMIN,
        services.TOPIC_ADMIN,
        services.SCHEMA_REGISTRY,
        services.SCHEMA_CONTROL,
    }
)
"""Services whose calls, on the admin port, see what was answered before at other brokers."""
_LOOKS_AGAIN = frozenset({services.DISCOVERY, services.SCHEMA_REGISTRY})
"""Services of clients, who ask often: only what is not found is looked for again."""

_ASKED_AT_A_TIME = 16


class Forwarding:
    """Wraps handlers so that each call reaches the owner of its topic."""

    def __init__(
        self,
        topics: TopicManager,
        directory: Directory,
        me: BrokerId,
        connect: Connect,
        readiness: Readiness,
    ) -> None:
        self._readiness = readiness
        self._topics = topics
        self._directory = directory
        self._me = me
        self._channels = PeerChannels(connect)

    def wrap_client(self, table: HandlerTable) -> None:
        """Put itself before those handlers of the client port that other brokers have a part in."""
        self._wrap_topics(table)
        for path, handler in _unary_of(_LOOKS_AGAIN, table):
            table.unary[path] = self._looking_again(services.METHODS[path], handler)

    def wrap_admin(self, table: HandlerTable) -> None:
        """Put itself before those handlers of the admin port that other brokers have a part in."""
        self._wrap_topics(table)
        for method in _TO_LEADER:
            table.unary[method.path] = self._to_leader(method, table.unary[method.path])
        for method, field in _MAKES_OPEN:
            table.unary[method.path] = self._opening(method, field, table.unary[method.path])
        for path, handler in _unary_of(_CAUGHT_UP, table):
            table.unary[path] = self._caught_up(handler)

    def _wrap_topics(self, table: HandlerTable) -> None:
        for method, field in _TOPIC_FIELDS:
            handler = table.unary.get(method.path)
            if handler is not None:
                forwarding = self._forwarding(method, field, handler)
                table.unary[method.path] = self._caught_up(forwarding)

    async def close(self) -> None:
        """Release all connections."""
        await self._channels.close()

    def _forwarding(self, method: Method[Any, Any], field: str, here: UnaryHandler) -> UnaryHandler:
        async def serve(request: bytes, call: Call) -> bytes:
            parsed = method.request.FromString(request)
            asked = getattr(parsed, field)
            if FORWARDED in call.metadata:
                await self._readiness.until_settled([asked])
                return await here(request, call)
            places = await self._places(asked)
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

    def _caught_up(self, handler: UnaryHandler) -> UnaryHandler:
        async def serve(request: bytes, call: Call) -> bytes:
            # One that was sent on, too: its sender may know more than this broker.
            is_current = await self._readiness.catch_up()
            with _certain(is_current):
                return await handler(request, call)

        return serve

    def _looking_again(self, method: Method[Any, Any], handler: UnaryHandler) -> UnaryHandler:
        async def serve(request: bytes, call: Call) -> bytes:
            try:
                reply = await handler(request, call)
            except CallRefused as refused:
                if refused.code is not StatusCode.NOT_FOUND:
                    raise
            else:
                if method is not services.TOPIC_PARTITIONS or _has_partitions(reply):
                    return reply
            is_current = await self._readiness.catch_up()
            with _certain(is_current):
                return await handler(request, call)

        return serve

    def _opening(self, method: Method[Any, Any], field: str, here: UnaryHandler) -> UnaryHandler:
        async def serve(request: bytes, call: Call) -> bytes:
            reply = await here(request, call)
            topics = self._names(getattr(method.request.FromString(request), field))
            await self._until_open(topics)
            return reply

        return serve

    async def _until_open(self, topics: Sequence[str]) -> None:
        """Return once every owner has opened its topics, and would take the next call."""
        slots = asyncio.Semaphore(_ASKED_AT_A_TIME)

        async def wait_for(topic: str) -> None:
            async with slots:
                await self._until_one_is_open(topic)

        await asyncio.gather(*(wait_for(topic) for topic in topics))

    async def _until_one_is_open(self, topic: str) -> None:
        clock = self._readiness.clock
        deadline_ms = clock.monotonic_ms() + int(SETTLE_SECONDS * 1000)
        question = services.LIST_SUBSCRIPTIONS.request(name=topic).SerializeToString()
        cause = "it is changing hands"
        while await self._readiness.until_settled([topic]):
            address = self._address_of(topic)
            if address is None:
                return  # It is open here, or gone, or waits for a broker that is away.
            try:
                await self._ask(address, services.LIST_SUBSCRIPTIONS, question)
            except CallRefused as refused:
                if refused.code is not StatusCode.UNAVAILABLE:
                    return  # It has been deleted, say: the next call says so, too.
                cause = refused.text
            else:
                return
            if clock.monotonic_ms() >= deadline_ms:
                break
            await clock.sleep(LOOK_SECONDS)
        raise CallRefused(
            StatusCode.UNAVAILABLE,
            f"topic {topic} is there, but not open yet ({cause}); it goes on by itself, see "
            f"danube topics describe {topic}",
        )

    async def _places(self, topic: str) -> dict[str, str | None]:
        """Return each physical topic meant, with the address of its owner; None: this broker."""
        names = self._names(topic)
        await self._readiness.until_settled(names)
        return {name: self._address_of(name) for name in names}

    def _names(self, topic: str) -> list[str]:
        try:
            return self._topics.partitions(topic)
        except InvalidRequest:
            return []  # The handler says what is wrong with it.

    def _address_of(self, topic: str) -> str | None:
        owner = self._directory.owner_now(topic)
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


@contextmanager
def _certain(is_current: bool) -> Iterator[None]:
    """Say that nobody knows, not that something is missing, on a broker that may be behind.

    Whoever deletes takes "not found" for done.
    """
    try:
        yield
    except CallRefused as refused:
        if is_current or refused.code is not StatusCode.NOT_FOUND:
            raise
        text = f"{refused.text}, as far as this broker knows; it may be behind its cluster: repeat"
        raise CallRefused(StatusCode.UNAVAILABLE, text) from refused


def _unary_of(
    service_names: Collection[str], table: HandlerTable
) -> list[tuple[str, UnaryHandler]]:
    return [
        (path, table.unary[path])
        for path, method in services.METHODS.items()
        if method.service in service_names and path in table.unary
    ]


def _has_partitions(reply: bytes) -> bool:
    return bool(services.TOPIC_PARTITIONS.response.FromString(reply).partitions)
