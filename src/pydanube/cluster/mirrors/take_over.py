"""Finds what was acknowledged of a topic whose owner is gone, in the journals of its set."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from typing_extensions import override

from pydanube.cluster.mirrors.peers import Fenced as FencedPeer
from pydanube.cluster.mirrors.peers import Peers
from pydanube.cluster.mirrors.ports import RecoveredTail
from pydanube.errors import DanubeError, Unavailable
from pydanube.model.batch import Batch
from pydanube.model.ids import BrokerId, Offset, SubscriptionId, TopicId
from pydanube.model.progress import Progress
from pydanube.runtime.tasks import Failed, TaskScope
from pydanube.storage.errors import Fenced
from pydanube.storage.journal.producers import LastBatch
from pydanube.storage.journal.reader import StoredBatch
from pydanube.storage.journal.records import BATCH_HEADER, decode_batch_header
from pydanube.storage.mirrors.mirror_logs import MirrorLogs
from pydanube.storage.mirrors.replication import Answer, answers_needed, choose_answer

_FETCH_BYTES = 2 * 1024 * 1024


class TailReader:
    """Asks journals what they hold, the own one without a call."""

    def __init__(self, own: BrokerId, logs: MirrorLogs, peers: Peers, report: Failed) -> None:
        self.report = report
        self._own = own
        self._logs = logs
        self._peers = peers

    async def fence(
        self,
        broker: BrokerId,
        topic_id: TopicId,
        epoch: int,
        subscriptions: Collection[SubscriptionId],
    ) -> FencedPeer:
        """Let a broker promise to take nothing of an earlier epoch; return what it has."""
        if broker != self._own:
            return await self._peers.fence(broker, topic_id, epoch, subscriptions)
        holding = await self._logs.fence(topic_id, epoch)
        return FencedPeer(
            holding=holding,
            producers=tuple(self._logs.producers(topic_id)),
            progress=self._logs.progress(subscriptions),
        )

    async def fetch(
        self, broker: BrokerId, topic_id: TopicId, epoch: int, start: Offset
    ) -> list[bytes]:
        """Return BATCH payloads of an epoch from an offset on, some at a time."""
        if broker != self._own:
            return await self._peers.fetch(broker, topic_id, epoch, start)
        records = await self._logs.read(topic_id, epoch, start, _FETCH_BYTES)
        return [record.payload for record in records]


class FoundTail(RecoveredTail):
    """The copy that holds everything, and where it is."""

    def __init__(
        self, reader: TailReader, broker: BrokerId, topic_id: TopicId, found: FencedPeer
    ) -> None:
        self.broker = broker
        self.start: Offset = found.holding.start
        self.end: Offset = found.holding.end
        self.producers: Sequence[LastBatch] = found.producers
        self.progress: Mapping[SubscriptionId, Progress] = found.progress
        self._epoch = found.holding.epoch
        self._topic_id = topic_id
        self._reader = reader

    @override
    async def batches(self, start: Offset) -> AsyncIterator[Sequence[StoredBatch]]:
        at = start
        while at < self.end:
            payloads = await self._reader.fetch(self.broker, self._topic_id, self._epoch, at)
            stored = [_stored(payload) for payload in payloads]
            if not stored:
                raise Unavailable(
                    f"broker {self.broker} lacks a batch of topic {self._topic_id} at offset "
                    f"{at}, although its copy reaches to {self.end}; try the recovery again"
                )
            yield stored
            at = Offset(stored[-1].base + stored[-1].batch.count)


def _stored(payload: bytes) -> StoredBatch:
    header = decode_batch_header(payload)
    return StoredBatch(header.base, Batch.from_bytes(payload[BATCH_HEADER.size :], header.count))


async def recover_tail(
    reader: TailReader,
    topic: str,
    topic_id: TopicId,
    *,
    set_epoch: int,
    members: Sequence[BrokerId],
    new_epoch: int,
    subscriptions: Collection[SubscriptionId],
) -> FoundTail:
    """Fence members of a set until enough of them have answered; return the best copy."""
    found: dict[BrokerId, FencedPeer] = {}
    missing: dict[BrokerId, DanubeError] = {}
    answers: dict[BrokerId, Answer] = {}
    told = asyncio.Event()

    async def ask(member: BrokerId) -> None:
        try:
            found[member] = await reader.fence(member, topic_id, new_epoch, subscriptions)
            answers[member] = _answer(member, found[member])
        except DanubeError as error:
            missing[member] = error
        finally:
            told.set()

    scope = TaskScope(reader.report)
    try:
        for member in members:
            scope.start(ask(member), f"ask broker {member} about {topic}")
        while True:
            await told.wait()
            told.clear()
            for error in missing.values():
                if isinstance(error, Fenced):
                    raise error
            best = choose_answer(set_epoch, members, answers)
            if best is not None:
                return FoundTail(reader, best.broker, topic_id, found[best.broker])
            if len(found) + len(missing) == len(members):
                raise _too_few(topic, set_epoch, members, answers, missing)
    finally:
        await scope.close()


def _answer(broker: BrokerId, found: FencedPeer) -> Answer:
    holding = found.holding
    return Answer(
        broker=broker,
        epoch=holding.epoch,
        stream=holding.stream,
        sequence=holding.sequence,
        end=holding.end,
    )


def _too_few(
    topic: str,
    set_epoch: int,
    members: Sequence[BrokerId],
    answers: Mapping[BrokerId, Answer],
    missing: Mapping[BrokerId, DanubeError],
) -> Unavailable:
    lost = [
        broker
        for broker, answer in answers.items()
        if answer.sequence is None or answer.epoch < set_epoch
    ]
    reasons = [f"{broker} does not answer ({why})" for broker, why in missing.items()]
    reasons += [f"{broker} has lost its copy" for broker in lost]
    return Unavailable(
        f"topic {topic} waits for the journals of {answers_needed(len(members))} of the brokers "
        f"{', '.join(map(str, members))}, which together know what was acknowledged: "
        f"{'; '.join(reasons)}. Start the missing brokers with their disks"
    )
