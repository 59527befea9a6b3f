"""What a broker answers when others ask about its journal."""

import struct
from collections.abc import Callable

from pydanube.cluster.mirrors.calls import (
    APPEND,
    BEGIN,
    FENCE,
    FETCH,
    AppendCall,
    BeginCall,
    Envelope,
    FenceCall,
    FenceReply,
    FetchCall,
    FetchReply,
    producers_bytes,
    progress_bytes,
    read_section,
    read_whole,
    refusal,
    wire_answers,
    wire_holding,
)
from pydanube.errors import Conflict, DanubeError
from pydanube.metadata.raft_calls import decode, encode
from pydanube.model.ids import BrokerId, Offset, SubscriptionId, TopicId
from pydanube.storage.errors import Fenced
from pydanube.storage.mirrors.mirror_logs import MirrorLogs
from pydanube.storage.segments.catalog import Frontier
from pydanube.wire.calls import Call, CallRefused, HandlerTable, StatusCode

FETCH_BYTES = 2 * 1024 * 1024

FrontierOf = Callable[[str, TopicId], Frontier | None]


class MirrorService:
    """Translates, delegates to the journal's mirrors, translates back.

    Refuses brokers of another cluster, and calls that were meant for another broker.
    """

    def __init__(
        self, cluster: str, own: BrokerId, logs: MirrorLogs, frontier_of: FrontierOf
    ) -> None:
        self._cluster = cluster
        self._own = own
        self._logs = logs
        self._frontier_of = frontier_of

    def add_to(self, table: HandlerTable) -> None:
        """Serve all that brokers ask about journals."""
        table.add_unary(BEGIN, self._begin)
        table.add_unary(APPEND, self._append)
        table.add_unary(FENCE, self._fence)
        table.add_unary(FETCH, self._fetch)

    async def _begin(self, request: bytes, call: Call) -> bytes:
        asked = decode(request, BeginCall)
        self._check(asked.envelope)
        topic_id = TopicId(asked.topic_id)
        try:
            self._check_claim(asked.topic, topic_id, asked.epoch)
            holding = await self._logs.begin(
                topic_id,
                asked.epoch,
                asked.stream,
                Offset(asked.start),
                read_whole(asked.whole) if asked.whole is not None else None,
            )
        except (DanubeError, struct.error) as error:
            raise _refused(error) from error
        return encode(wire_holding(holding))

    async def _append(self, request: bytes, call: Call) -> bytes:
        asked = decode(request, AppendCall)
        self._check(asked.envelope)
        try:
            answers = await self._logs.append([read_section(each) for each in asked.sections])
        except (DanubeError, struct.error) as error:
            raise _refused(error) from error
        return encode(wire_answers(answers))

    async def _fence(self, request: bytes, call: Call) -> bytes:
        asked = decode(request, FenceCall)
        self._check(asked.envelope)
        topic_id = TopicId(asked.topic_id)
        try:
            holding = await self._logs.fence(topic_id, asked.epoch)
        except DanubeError as error:
            raise _refused(error) from error
        progress = self._logs.progress([SubscriptionId(each) for each in asked.subscriptions])
        return encode(
            FenceReply(
                wire_holding(holding),
                producers_bytes(topic_id, self._logs.producers(topic_id)),
                progress_bytes(progress.items()),
            )
        )

    async def _fetch(self, request: bytes, call: Call) -> bytes:
        asked = decode(request, FetchCall)
        self._check(asked.envelope)
        try:
            records = await self._logs.read(
                TopicId(asked.topic_id), asked.epoch, Offset(asked.start), FETCH_BYTES
            )
        except DanubeError as error:
            raise _refused(error) from error
        return encode(FetchReply([record.payload for record in records]))

    def _check(self, envelope: Envelope) -> None:
        if envelope.cluster != self._cluster:
            raise refusal(
                Conflict(
                    f"this broker belongs to cluster {self._cluster}, broker {envelope.sender} to "
                    f"{envelope.cluster}; give each cluster addresses of its own"
                )
            )
        if envelope.to != self._own:
            raise refusal(
                Conflict(
                    f"this is broker {self._own}, not {envelope.to}; check the brokers' addresses"
                )
            )

    def _check_claim(self, topic: str, topic_id: TopicId, epoch: int) -> None:
        frontier = self._frontier_of(topic, topic_id)
        if frontier is not None and frontier.topic_id == topic_id and frontier.epoch > epoch:
            raise Fenced(f"topic {topic} has been taken over with epoch {frontier.epoch}")


def _refused(error: DanubeError | struct.error) -> CallRefused:
    if isinstance(error, DanubeError):
        return refusal(error)
    return CallRefused(StatusCode.INVALID_ARGUMENT, f"not records of a journal: {error}")
