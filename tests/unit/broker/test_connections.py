"""How descriptors are divided between files and ports."""

import pytest

from pydanube.broker.connections import ConnectionPlan, Connections, plan_connections
from pydanube.broker.errors import InvalidConfig
from pydanube.runtime import descriptors
from pydanube.runtime.network import LISTEN_BACKLOG


def taken(plan: ConnectionPlan, *, is_clustered: bool) -> int:
    """Everything that may be open at once."""
    ports = [plan.client, plan.admin, *([plan.raft] if is_clustered else [])]
    held = sum(port.connections_max + port.backlog for port in ports)
    return held + plan.prometheus + LISTEN_BACKLOG + plan.reserved


@pytest.mark.parametrize("is_clustered", [False, True])
@pytest.mark.parametrize("limit", [256, 400, 1_024, 4_096, 65_536, 1_048_576])
def test_ports_and_files_never_take_more_than_there_is(limit: int, is_clustered: bool) -> None:
    plan = plan_connections(limit, Connections(), is_clustered=is_clustered)
    assert taken(plan, is_clustered=is_clustered) <= limit
    assert plan.reserved >= 64
    assert plan.client.connections_max >= 50


def test_with_many_descriptors_every_port_has_its_usual_limit() -> None:
    plan = plan_connections(1_048_576, Connections(), is_clustered=True)
    assert plan.client.connections_max == 10_000
    assert plan.client.per_address_max == 4_096
    assert (plan.admin.connections_max, plan.raft.connections_max) == (256, 256)
    assert plan == plan_connections(None, Connections(), is_clustered=True)


def test_what_is_given_is_taken() -> None:
    wanted = Connections(
        reserved_descriptors=300,
        client_max=20_000,
        client_per_address_max=7,
        admin_max=9,
        raft_max=11,
        prometheus_max=3,
    )
    plan = plan_connections(65_536, wanted, is_clustered=True)
    assert plan.reserved == 300
    assert (plan.client.connections_max, plan.client.per_address_max) == (20_000, 7)
    assert (plan.admin.connections_max, plan.raft.connections_max) == (9, 11)
    assert plan.prometheus == 3


def test_more_connections_than_there_are_descriptors_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"5000 are wanted .*client_max.*ulimit -n"):
        plan_connections(1_024, Connections(client_max=5_000), is_clustered=False)
    with pytest.raises(InvalidConfig, match="0 are left for connections of clients"):
        plan_connections(1_024, Connections(reserved_descriptors=1_000), is_clustered=False)


def test_too_few_descriptors_for_a_broker_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="needs 256: raise the limit"):
        plan_connections(255, Connections(), is_clustered=False)


class Limits:
    """What the system says and takes."""

    RLIM_INFINITY = -1
    RLIMIT_NOFILE = 7

    def __init__(self, soft: int, hard: int, most: int = 1 << 40) -> None:
        self.soft, self.hard, self._most = soft, hard, most

    def getrlimit(self, _: int) -> tuple[int, int]:
        return self.soft, self.hard

    def setrlimit(self, _: int, limits: tuple[int, int]) -> None:
        if limits[0] > self._most:
            raise ValueError("not allowed")
        self.soft, self.hard = limits


@pytest.mark.parametrize(
    ("soft", "hard", "most", "then"),
    [
        (1_024, 4_096, 1 << 40, 4_096),
        (1_024, 1_024, 1 << 40, 1_024),
        (1_024, -1, 1 << 40, 1_048_576),
        (1_024, 1_073_741_816, 1 << 40, 1_048_576),
        (2_000_000, 3_000_000, 1 << 40, 2_000_000),
        (1_024, -1, 10_240, 1_024),
        (-1, -1, 1 << 40, None),
    ],
)
def test_the_soft_limit_is_raised_to_the_hard_one_within_reason(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, most: int, then: int | None
) -> None:
    monkeypatch.setattr(descriptors, "resource", Limits(soft, hard, most))
    assert descriptors.raise_descriptors_max() == then
    assert descriptors.descriptors_max() == then
