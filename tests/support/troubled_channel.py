"""A channel to a real broker, with trouble on the way of batches."""

from collections.abc import AsyncIterator, Mapping

from pydanube.wire.calls import CallRefused, ExchangeChannel, StatusCode
from pydanube.wire.flight import service
from pydanube.wire.http2.channel import Http2Channel


class TroubledChannel:
    """A channel that loses the answers to publishes, or knows no batches at all."""

    def __init__(self, url: str, trouble: list[StatusCode]) -> None:
        self._channel: ExchangeChannel = Http2Channel(url)
        self._trouble = trouble
        self.unary = self._channel.unary
        self.stream = self._channel.stream
        self.close = self._channel.close

    async def exchange(
        self,
        path: str,
        requests: AsyncIterator[bytes],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[bytes]:
        if self._trouble and self._trouble[0] is StatusCode.UNIMPLEMENTED:
            raise CallRefused(StatusCode.UNIMPLEMENTED, "no such method")
        async for reply in self._channel.exchange(path, requests, metadata=metadata):
            if self._trouble and path == service.DO_PUT:
                raise CallRefused(self._trouble.pop(), "the connection was lost")
            yield reply
