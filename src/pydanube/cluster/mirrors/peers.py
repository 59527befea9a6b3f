"""Calls to the journals of other brokers: one channel to each, made when it is needed."""

from collections.abc import Collection, Sequence

from msgspec import Struct

from pydanube.cluster.mirrors.calls import (
    APPEND,
    BEGIN,
    FENCE,
    FETCH,
    AppendCall,
    AppendReply,
    BeginCall,
    Envelope,
    FenceCall,
    FenceReply,
    FetchCall,
    FetchReply,
    WireHolding,
    error_of,
    read_answers,
    read_holding,
    read_producers,
    read_progress,
    wire_section,
    wire_whole,
)
from pydanube.cluster.mirrors.ports import ReplicaSets
from pydanube.errors import Unavailable
from pydanube.metadata.raft_calls import decode, encode
from pydanube.metadata.transport import Connect
from pydanube.model.ids import BrokerId, Offset, SubscriptionId, TopicId
from pydanube.model.progress import Progress
from pydanube.storage.journal.producers import LastBatch
from pydanube.storage.mirrors.mirror_logs import Holding, Section, SectionAnswer, Whole
from pydanube.wire.calls import CallRefused, Channel

CALL_SECONDS = 5.0


class Fenced(Struct, frozen=True, kw_only=True):
    """What a broker that was fenced holds of a topic."""

    holding: Holding
    producers: tuple[LastBatch, ...]
    progress: dict[SubscriptionId, Progress]


class Peers:
    """Raises what the other broker refused with, and Unavailable when it was not reached."""

    def __init__(self, cluster: str, own: BrokerId, connect: Connect, sets: ReplicaSets) -> None:
        self._cluster = cluster
        self._own = own
        self._connect = connect
        self._sets = sets
        self._channels: dict[BrokerId, tuple[str, Channel]] = {}

    async def begin(
        self,
        broker: BrokerId,
        topic: str,
        topic_id: TopicId,
        *,
        epoch: int,
        stream: int,
        start: Offset,
        whole: Whole | None,
    ) -> Holding:
        """Let a broker be a mirror; return what it has."""
        sent = wire_whole(topic_id, whole) if whole is not None else None
        call = BeginCall(self._to(broker), topic, topic_id, epoch, stream, start, sent)
        return read_holding(decode(await self._call(broker, BEGIN, call), WireHolding))

    async def append(self, broker: BrokerId, sections: Sequence[Section]) -> list[SectionAnswer]:
        """Let a mirror journal records; return once they are synced there."""
        call = AppendCall(self._to(broker), [wire_section(section) for section in sections])
        return read_answers(decode(await self._call(broker, APPEND, call), AppendReply))

    async def fence(
        self,
        broker: BrokerId,
        topic_id: TopicId,
        epoch: int,
        subscriptions: Collection[SubscriptionId],
    ) -> Fenced:
        """Let a broker promise to take nothing of an earlier epoch; return what it has."""
        call = FenceCall(self._to(broker), topic_id, epoch, list(subscriptions))
        reply = decode(await self._call(broker, FENCE, call), FenceReply)
        return Fenced(
            holding=read_holding(reply.holding),
            producers=read_producers(reply.producers),
            progress=read_progress(reply.progress),
        )

    async def fetch(
        self, broker: BrokerId, topic_id: TopicId, epoch: int, start: Offset
    ) -> list[bytes]:
        """Return BATCH payloads of an epoch from an offset on, some at a time."""
        call = FetchCall(self._to(broker), topic_id, epoch, start)
        return decode(await self._call(broker, FETCH, call), FetchReply).payloads

    async def close(self) -> None:
        """Let go of all channels."""
        channels, self._channels = self._channels, {}
        for _, channel in channels.values():
            await channel.close()

    def _to(self, broker: BrokerId) -> Envelope:
        return Envelope(self._cluster, self._own, broker)

    async def _call(self, broker: BrokerId, path: str, request: Struct) -> bytes:
        channel = await self._channel(broker)
        try:
            return await channel.unary(path, encode(request), timeout_seconds=CALL_SECONDS)
        except CallRefused as refused:
            raise error_of(broker, refused) from refused

    async def _channel(self, broker: BrokerId) -> Channel:
        address = self._sets.address_of(broker)
        if address is None:
            raise Unavailable(f"broker {broker} is not there")
        known = self._channels.get(broker)
        if known is not None and known[0] == address:
            return known[1]
        channel = self._connect(address)
        self._channels[broker] = address, channel
        if known is not None:
            await known[1].close()
        return channel
