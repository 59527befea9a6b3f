"""Batches that are read back: what they keep in memory, and that it is theirs."""

from pydanube.model.ids import Offset, TopicId
from pydanube.storage.config import StorageConfig
from tests.support.journals import broker_on, instant_disk, payloads_of

PAYLOADS = [bytes([number]) * 100_000 for number in range(4)]
UNCACHED = StorageConfig(tail_cache_bytes_max=0)


async def test_a_batch_that_is_read_alone_is_not_copied() -> None:
    async with broker_on(instant_disk(), UNCACHED) as broker:
        for payload in PAYLOADS:
            await broker.append(1, payload)
        log = broker.storage.topic(TopicId(1))
        for number, payload in enumerate(PAYLOADS):
            pieces = await log.read(Offset(number), log.durable_end, bytes_max=1)
            assert payloads_of(pieces) == [payload]
            data = pieces[0].batch.data
            assert isinstance(data, memoryview)
            assert len(data.obj) - len(data) < 200, "what was read is the batch and its frame"


async def test_batches_that_are_read_together_do_not_keep_each_other_in_memory() -> None:
    async with broker_on(instant_disk(), UNCACHED) as broker:
        for payload in PAYLOADS:
            await broker.append(1, payload)
        log = broker.storage.topic(TopicId(1))
        pieces = await log.read(Offset(0), log.durable_end, bytes_max=10**6)
        assert payloads_of(pieces) == PAYLOADS
        assert all(isinstance(piece.batch.data, bytes) for piece in pieces)
