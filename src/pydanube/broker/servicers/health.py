"""The standard gRPC health service, for load balancers and probes that know nothing of Danube."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence

from pydanube.runtime.clock import Clock
from pydanube.wire.calls import Call, CallRefused, HandlerTable, StatusCode
from pydanube.wire.danube.generated import Health_pb2 as health
from pydanube.wire.danube.services import decode

CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
SERVICE = "grpc.health.v1.Health"

LOOK_SECONDS = 1.0
"""How soon a watcher hears of a change."""

_Status = health.HealthCheckResponse


class HealthServicer:
    """Tells whether the broker serves. It answers while the broker recovers and drains, too."""

    def __init__(
        self, service_names: Collection[str], is_ready: Callable[[], bool], clock: Clock
    ) -> None:
        self._service_names = {"", SERVICE, *service_names}
        self._is_ready = is_ready
        self._clock = clock

    def register(self, table: HandlerTable) -> None:
        """Serve Check and Watch."""
        table.add_unary(CHECK, self.check)
        table.add_stream(WATCH, self.watch)

    async def check(self, data: bytes, call: Call) -> bytes:
        """Answer for the server or one of its services."""
        request = decode(health.HealthCheckRequest, data)
        status = self._status(request.service)
        if status == _Status.SERVICE_UNKNOWN:
            raise CallRefused(StatusCode.NOT_FOUND, f"service {request.service} is not served here")
        return _Status(status=status).SerializeToString()

    async def watch(self, data: bytes, call: Call) -> AsyncIterator[Sequence[bytes]]:
        """Answer now, and again after each change."""
        request = decode(health.HealthCheckRequest, data)
        return self._changes(request.service)

    async def _changes(self, service: str) -> AsyncIterator[Sequence[bytes]]:
        told = None
        while True:
            status = self._status(service)
            if status != told:
                told = status
                yield [_Status(status=status).SerializeToString()]
            await self._clock.sleep(LOOK_SECONDS)

    def _status(self, service: str) -> "health.HealthCheckResponse.ServingStatus.ValueType":
        if service not in self._service_names:
            return _Status.SERVICE_UNKNOWN
        return _Status.SERVING if self._is_ready() else _Status.NOT_SERVING
