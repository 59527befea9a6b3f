"""The `danube` command on the HTTP/2 engine with limits that are reached within a second.

python -m benchmarks.impatient_broker broker …
"""

from pydanube.broker import server
from pydanube.cli.main import danube
from pydanube.wire.http2.engine import Http2Engine
from pydanube.wire.http2.limits import MIB, Http2Limits

LIMITS = Http2Limits(
    connections_per_address_max=20,
    request_bytes_buffered_max=100_000,
    resets_burst=100,
    outgoing_bytes_max=MIB,
    outgoing_seconds_max=0.5,
    handshake_seconds_max=0.5,
    first_request_seconds_max=0.5,
    request_seconds_max=0.5,
    idle_seconds_max=0.5,
    ping_seconds_max=0.5,
)


if __name__ == "__main__":
    server.engine_named = lambda name: Http2Engine(limits=LIMITS)
    danube()
