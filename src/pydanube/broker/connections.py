"""How many connections each port takes, so that files can always be opened."""

from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from pydanube.broker.errors import InvalidConfig
from pydanube.runtime.network import LISTEN_BACKLOG
from pydanube.wire.calls import ConnectionLimit

CLIENTS_MAX: Final = 10_000
OTHERS_MAX: Final = 256
BACKLOG_MAX: Final = 1_024
RESERVED_MIN: Final = 64
RESERVED_MAX: Final = 512
DESCRIPTORS_MIN: Final = 256

_BACKLOG_OTHERS_MAX: Final = 64
_RAISE = "raise the limit (ulimit -n, LimitNOFILE of systemd)"

Wanted = Annotated[int, Meta(ge=1)] | None


class Connections(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many connections the ports take. PyDanube's own section.

    What is not given follows from how many descriptors the process may have (`ulimit -n`); the
    broker raises its limit as far as it may when it starts.
    """

    reserved_descriptors: Annotated[
        Annotated[int, Meta(ge=32)] | None,
        Meta(
            description="Descriptors that no connection takes: for journal, segments, metadata, "
            "and connections to others. none: a quarter of all, 64 to 512."
        ),
    ] = None
    client_max: Annotated[
        Wanted, Meta(description="To the client port. none: what is left for it, up to 10,000.")
    ] = None
    client_per_address_max: Annotated[
        int,
        Meta(ge=1, description="To the client port from one address; only the engine http2."),
    ] = 4_096
    admin_max: Annotated[
        Wanted,
        Meta(description="To the admin port. none: an eighth of what is left, up to 256."),
    ] = None
    raft_max: Annotated[
        Wanted,
        Meta(description="From other brokers. none: an eighth of what is left, up to 256."),
    ] = None
    held_bytes_max: Annotated[
        int,
        Meta(
            ge=16 * 1024 * 1024,
            description="Bytes of unfinished requests and of unread replies for all connections "
            "of a port; who holds most is parted with beyond it. Only the engine http2.",
        ),
    ] = 1024 * 1024 * 1024
    prometheus_max: Annotated[
        int,
        Meta(ge=1, description="To the metrics port, at once; more get the answer 503."),
    ] = 32


class ConnectionPlan(Struct, frozen=True, kw_only=True):
    """What each port may have, all together no more than there is."""

    client: ConnectionLimit
    admin: ConnectionLimit
    raft: ConnectionLimit
    """Of use in a cluster only."""
    prometheus: int
    reserved: int


def plan_connections(
    descriptors: int | None, wanted: Connections, *, is_clustered: bool
) -> ConnectionPlan:
    """Divide the descriptors; InvalidConfig if they are fewer than what was asked for takes.

    Before a connection beyond a limit is turned away it was accepted, and so takes a descriptor
    for a moment: as many are left free as may come at once.
    """
    if descriptors is None:
        return _plan(wanted, CLIENTS_MAX + OTHERS_MAX, RESERVED_MAX, BACKLOG_MAX)
    if descriptors < DESCRIPTORS_MIN:
        raise InvalidConfig(
            f"this process may have {descriptors} descriptors, which is too few for a broker; it "
            f"needs {DESCRIPTORS_MIN}: {_RAISE}"
        )
    reserved = wanted.reserved_descriptors or _between(RESERVED_MIN, descriptors // 4, RESERVED_MAX)
    pages = wanted.prometheus_max + LISTEN_BACKLOG
    left = descriptors - reserved - pages
    eighth = max(1, left // 8)
    plan = _plan(wanted, max(1, left), reserved, min(BACKLOG_MAX, eighth))
    others = [plan.admin, plan.raft] if is_clustered else [plan.admin]
    taken = plan.client.backlog + sum(port.connections_max + port.backlog for port in others)
    clients = left - taken
    if clients < (wanted.client_max or 1):
        raise InvalidConfig(
            f"this process may have {descriptors} descriptors. Without those for files "
            f"({reserved}) and for the other ports ({taken + pages}), "
            f"{max(0, clients)} are left for connections of clients, and {wanted.client_max or 1} "
            f"are wanted (broker.connections.client_max): {_RAISE}, or lower the settings of "
            "broker.connections"
        )
    return _with_clients(plan, wanted.client_max or min(clients, CLIENTS_MAX), wanted)


def _plan(wanted: Connections, left: int, reserved: int, backlog: int) -> ConnectionPlan:
    """Return what the ports take but for clients, of whom there are as many as there may be."""
    others = min(OTHERS_MAX, max(1, left // 8))
    few = min(_BACKLOG_OTHERS_MAX, max(1, backlog // 4))

    def limit(count: int) -> ConnectionLimit:
        return ConnectionLimit(
            connections_max=count,
            per_address_max=count,
            backlog=few,
            held_bytes_max=wanted.held_bytes_max,
        )

    clients = wanted.client_max or CLIENTS_MAX
    return ConnectionPlan(
        client=ConnectionLimit(
            connections_max=clients,
            per_address_max=min(clients, wanted.client_per_address_max),
            backlog=backlog,
            held_bytes_max=wanted.held_bytes_max,
        ),
        admin=limit(wanted.admin_max or others),
        raft=limit(wanted.raft_max or others),
        prometheus=wanted.prometheus_max,
        reserved=reserved,
    )


def _with_clients(plan: ConnectionPlan, clients: int, wanted: Connections) -> ConnectionPlan:
    per_address = min(clients, wanted.client_per_address_max)
    client = replace(plan.client, connections_max=clients, per_address_max=per_address)
    return replace(plan, client=client)


def _between(least: int, number: int, most: int) -> int:
    return max(least, min(number, most))
