"""DoPut in memory: stores numbered batches once, in order, and misbehaves on request."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator

import pyarrow as pa

from pydanube.model.batch import SCHEMA
from pydanube.wire.calls import Body, CallRefused, StatusCode, whole
from pydanube.wire.flight.descriptors import BatchNumbers, PublishCommand, PutAnswer, decode, encode
from pydanube.wire.flight.framing import (
    encapsulate,
    read_descriptor,
    read_flight_data,
    write_put_result,
)
from pydanube.wire.flight.ipc import IpcKind, read_head

POISON = b"poison"
"""A payload for which the whole batch is refused for good."""


class FakePuts:
    """One topic's batches. Every trouble meets one batch, in turn: None leaves it alone."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.batches: list[int] = []
        """Rows of every batch that was stored."""
        self.streams = 0
        self.open_streams = 0
        self.answer_seconds = 0.0
        """How long each batch takes; meanwhile more of them arrive."""
        self.troubles: deque[str | None] = deque()
        """refuse: nothing stored. lose: stored, the answer lost. hang: neither."""
        self._last: dict[tuple[str, int | None], int] = {}

    async def exchange(self, requests: AsyncIterator[Body]) -> AsyncGenerator[bytes, None]:
        self.streams += 1
        self.open_streams += 1
        command: PublishCommand | None = None
        previous: int | None = None
        arrived: asyncio.Queue[Body] = asyncio.Queue()

        async def listen() -> None:
            async for request in requests:
                arrived.put_nowait(request)

        listening = asyncio.create_task(listen())
        try:
            while True:
                data = read_flight_data(whole(await arrived.get()))
                if data.descriptor is not None:
                    text = read_descriptor(data.descriptor).command
                    command = decode(PublishCommand, text, "a command")
                if read_head(bytes(data.header)).kind is IpcKind.SCHEMA:
                    continue
                assert command is not None, "a stream begins with its descriptor"
                message = pa.py_buffer(encapsulate(data.header, data.body))
                payloads = pa.ipc.read_record_batch(message, SCHEMA).column("payload").to_pylist()
                numbers = decode(BatchNumbers, data.app_metadata, "numbers")
                offset = await self._take(command, payloads, numbers.first_sequence, previous)
                if numbers.first_sequence is not None:
                    previous = numbers.first_sequence + len(payloads) - 1
                answer = PutAnswer(result="applied", rows=len(payloads), offset=offset)
                yield write_put_result(encode(answer))
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            self.open_streams -= 1

    async def _take(
        self,
        command: PublishCommand,
        payloads: list[bytes],
        first: int | None,
        previous: int | None,
    ) -> int | None:
        await asyncio.sleep(self.answer_seconds)
        trouble = self.troubles.popleft() if self.troubles else None
        if trouble == "hang":
            await asyncio.Event().wait()
        if trouble == "refuse":
            raise CallRefused(StatusCode.UNAVAILABLE, "not now")
        if POISON in payloads:
            raise CallRefused(StatusCode.INVALID_ARGUMENT, "there is poison in it")
        key = (command.producer, command.session)
        known = self._last.get(key)
        offset: int | None = None
        if first is None or known is None or first > known:
            if previous is not None and (known is None or known < previous):
                raise CallRefused(StatusCode.UNAVAILABLE, f"{previous} has not been stored")
            offset = len(self.payloads)
            self.payloads += payloads
            self.batches.append(len(payloads))
            if first is not None:
                self._last[key] = first + len(payloads) - 1
        if trouble == "lose":
            raise CallRefused(StatusCode.UNAVAILABLE, "the connection was lost")
        return offset
