"""How much a peer may ask of one connection. Every limit is on by default."""

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from pydanube.wire.calls import ConnectionLimit

KIB: Final = 1024
MIB: Final = 1024 * KIB

HANDSHAKE_BYTES_MAX: Final = 8 * KIB
"""No peer makes us hold more than this before its preface and SETTINGS are complete."""


class Http2Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of an HTTP/2 engine; who breaks one gets GOAWAY ENHANCE_YOUR_CALM and is cut off.

    Bursts refill at their rate per second, so that an honest client that once does much at a time
    is served, and one that never stops is not.
    """

    connections_max: Annotated[int, Meta(ge=1, description="Connections per server.")] = 10_000
    connections_per_address_max: Annotated[
        int, Meta(ge=1, description="Connections from one address.")
    ] = 4_096
    backlog: Annotated[
        int,
        Meta(ge=1, description="Connections that wait to be accepted, or leave, turned away."),
    ] = 1_024
    held_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Unfinished requests and unread replies of all connections together.",
        ),
    ] = 1024 * MIB
    streams_max: Annotated[int, Meta(ge=1, description="Calls at once on a connection.")] = 4_096
    message_bytes_max: Annotated[int, Meta(ge=1, description="Size of one message, unpacked.")] = (
        16 * MIB
    )
    request_bytes_buffered_max: Annotated[
        int, Meta(ge=1, description="Bytes of unfinished requests held for a connection.")
    ] = 64 * MIB
    large_request_bytes_max: Annotated[
        int, Meta(ge=1, description="Bytes that requests above their first window share.")
    ] = 32 * MIB
    unpacked_ratio_max: Annotated[
        int, Meta(ge=1, description="How far a compressed message above 1 MiB may expand.")
    ] = 200
    payload_bytes_max: Annotated[
        int, Meta(ge=16_384, le=16_777_215, description="Payload of one frame.")
    ] = 256 * KIB
    stream_window_bytes: Annotated[
        int, Meta(ge=65_535, le=2**31 - 1, description="What a call may send unasked.")
    ] = 64 * KIB
    exchange_window_bytes: Annotated[
        int,
        Meta(
            ge=65_535,
            le=2**31 - 1,
            description="What a call with a stream of requests may send ahead of its handler.",
        ),
    ] = 2 * MIB
    exchange_bytes_max: Annotated[
        int, Meta(ge=1, description="What all such calls may send ahead beyond their first window.")
    ] = 32 * MIB
    connection_window_bytes: Annotated[
        int, Meta(ge=65_535, le=2**31 - 1, description="What all calls may send unasked.")
    ] = 16 * MIB
    header_list_bytes_max: Annotated[
        int, Meta(ge=1, description="Headers of one call, unpacked.")
    ] = 16 * KIB
    header_block_bytes_max: Annotated[
        int, Meta(ge=1, description="Headers of one call, as sent.")
    ] = 16 * KIB
    continuations_max: Annotated[
        int, Meta(ge=0, description="CONTINUATION frames of one header block.")
    ] = 8
    resets_burst: Annotated[int, Meta(ge=1, description="Calls reset at a time.")] = 1_000
    resets_per_second: Annotated[float, Meta(gt=0)] = 33.0
    empty_frames_burst: Annotated[int, Meta(ge=1, description="Frames without content.")] = 100
    empty_frames_per_second: Annotated[float, Meta(gt=0)] = 10.0
    pings_burst: Annotated[int, Meta(ge=1, description="PING frames.")] = 1_000
    pings_per_second: Annotated[float, Meta(gt=0)] = 100.0
    settings_burst: Annotated[int, Meta(ge=1, description="SETTINGS frames.")] = 50
    settings_per_second: Annotated[float, Meta(gt=0)] = 1.0
    idle_frames_burst: Annotated[
        int, Meta(ge=1, description="Frames that change nothing: PRIORITY, unknown, late ones.")
    ] = 2_000
    idle_frames_per_second: Annotated[float, Meta(gt=0)] = 1_000.0
    outgoing_bytes_max: Annotated[
        int, Meta(ge=1, description="Replies held for a peer that does not read.")
    ] = 64 * MIB
    outgoing_seconds_max: Annotated[
        float, Meta(gt=0, description="How long a peer may leave replies unread.")
    ] = 60.0
    handshake_seconds_max: Annotated[
        float, Meta(gt=0, description="Until TLS, preface and SETTINGS are complete.")
    ] = 5.0
    first_request_seconds_max: Annotated[
        float, Meta(gt=0, description="From the handshake to the first whole request.")
    ] = 10.0
    request_seconds_max: Annotated[
        float, Meta(gt=0, description="From the headers of a request to its end.")
    ] = 60.0
    idle_seconds_max: Annotated[
        float, Meta(gt=0, description="Silence after which a PING is sent.")
    ] = 60.0
    ping_seconds_max: Annotated[
        float, Meta(gt=0, description="Until that PING must be answered.")
    ] = 20.0


def with_connections(limits: Http2Limits, connections: ConnectionLimit) -> Http2Limits:
    """Return the limits for a server that holds so many connections."""
    return replace(
        limits,
        connections_max=connections.connections_max,
        connections_per_address_max=connections.per_address_max,
        backlog=connections.backlog,
        held_bytes_max=connections.held_bytes_max,
    )


def plan_relief(held: Sequence[int], bytes_max: int) -> list[int]:
    """Return whom to part with, by their places, so that the others hold no more than that.

    Those who hold most go first, so that as few as possible do.
    """
    total = sum(held)
    leaving: list[int] = []
    if total <= bytes_max:
        return leaving
    for place in sorted(range(len(held)), key=lambda place: -held[place]):
        if total <= bytes_max:
            break
        leaving.append(place)
        total -= held[place]
    return leaving


class Allowance:
    """So many at a time, refilled at so many per second."""

    __slots__ = ("_burst", "_left", "_per_ms", "_seen_ms")

    def __init__(self, burst: int, per_second: float) -> None:
        self._burst = burst
        self._per_ms = per_second / 1000
        self._left = float(burst)
        self._seen_ms = 0

    def take(self, now_ms: int) -> bool:
        """Use one; False when none is left. `now_ms` never goes backwards."""
        left = min(float(self._burst), self._left + (now_ms - self._seen_ms) * self._per_ms)
        self._seen_ms = now_ms
        granted = left >= 1
        self._left = left - 1 if granted else left
        return granted
