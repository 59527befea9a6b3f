"""One gRPC call over a bare socket, to see which frames a server really sends."""

import asyncio
from typing import NamedTuple

HEADERS, DATA, SETTINGS = 1, 0, 4
END_STREAM, END_HEADERS = 0x1, 0x4


class Frame(NamedTuple):
    type: int
    flags: int
    payload: bytes

    @property
    def ends_stream(self) -> bool:
        return bool(self.flags & END_STREAM)


class RawCall:
    """Sends one request when entered; `next_frame` returns what concerns the call."""

    def __init__(self, port: int, path: str, request: bytes = b"") -> None:
        self._port = port
        self._path = path
        self._request = request

    async def __aenter__(self) -> "RawCall":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        message = b"\0" + len(self._request).to_bytes(4) + self._request
        self._writer.write(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(SETTINGS, 0, 0, b"")
            + _frame(HEADERS, END_HEADERS, 1, self._header_block())
            + _frame(DATA, END_STREAM, 1, message)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def next_frame(self) -> Frame:
        while True:
            head = await self._reader.readexactly(9)
            payload = await self._reader.readexactly(int.from_bytes(head[:3]))
            if int.from_bytes(head[5:]) == 1 and head[3] in {HEADERS, DATA}:
                return Frame(head[3], head[4], payload)

    async def frames_to_the_end(self) -> list[Frame]:
        frames = [await self.next_frame()]
        while not frames[-1].ends_stream:
            frames.append(await self.next_frame())
        return frames

    def _header_block(self) -> bytes:
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": self._path,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        return b"".join(
            b"\0" + _hpack_string(name) + _hpack_string(value) for name, value in fields.items()
        )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _hpack_string(text: str) -> bytes:
    assert len(text) < 127  # Longer ones need another form of the length.
    return bytes([len(text)]) + text.encode()
