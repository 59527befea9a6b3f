"""New topics go to the least loaded brokers in turn, and never to one that is being emptied."""

import pytest

from pydanube.balance.cluster import ClusterLoad
from pydanube.balance.placement import choose_broker
from pydanube.model.ids import BrokerId
from tests.support.balance_builders import counted

TOPIC = "/default/orders"


@pytest.mark.parametrize(
    ("counts", "last_chosen", "chosen"),
    [
        ({1: 3, 2: 2, 3: 5}, None, 2),
        ({1: 3, 2: 3, 3: 5}, None, 1),
        ({1: 3, 2: 3, 3: 5}, 1, 2),
        ({1: 3, 2: 3, 3: 5}, 2, 1),
        # Small scores must be equal to be candidates; larger ones may differ by a tenth.
        ({1: 9, 2: 10, 3: 10}, 1, 1),
        ({1: 10, 2: 11, 3: 12}, 1, 2),
        ({1: 10, 2: 11, 3: 12}, 2, 1),
        ({1: 100, 2: 110, 3: 111}, 1, 2),
        ({1: 100, 2: 110, 3: 111}, 2, 1),
        # The one chosen last may be gone.
        ({1: 4, 2: 4}, 9, 1),
        ({1: 4, 3: 4}, 2, 3),
    ],
)
def test_a_new_topic_goes_in_turn_to_the_least_loaded(
    counts: dict[int, int], last_chosen: int | None, chosen: int
) -> None:
    last = None if last_chosen is None else BrokerId(last_chosen)
    assert choose_broker(counted(counts), TOPIC, "fair", last_chosen=last).broker == chosen


def test_many_new_topics_are_spread_evenly() -> None:
    cluster = counted({1: 0, 2: 0, 3: 0})
    last = None
    for index in range(300):
        last = choose_broker(cluster, f"/default/t{index}", "balanced", last_chosen=last).broker
        assert last is not None
        cluster = cluster.with_assignment(f"/default/t{index}", last)
    assert [len(each.topics) for each in cluster.brokers.values()] == [100, 100, 100]


def test_draining_and_drained_brokers_get_nothing() -> None:
    cluster = counted({1: 0, 2: 0, 3: 50}, {1: "draining", 2: "drained"})
    assert choose_broker(cluster, TOPIC, "fair").broker == 3
    assert choose_broker(cluster, TOPIC, "fair", source=BrokerId(1)).broker == 3
    assert choose_broker(cluster, TOPIC, "fair", wanted=BrokerId(1)).broker == 3


def test_a_topic_that_leaves_its_broker_goes_to_the_least_loaded_other() -> None:
    cluster = counted({1: 0, 2: 7, 3: 5})
    assert choose_broker(cluster, TOPIC, "fair", source=BrokerId(1)).broker == 3
    wanted = choose_broker(cluster, TOPIC, "fair", source=BrokerId(1), wanted=BrokerId(2))
    assert wanted.broker == 2
    back = choose_broker(cluster, TOPIC, "fair", source=BrokerId(1), wanted=BrokerId(1))
    assert back.broker == 3


def test_without_an_active_broker_the_reason_says_what_to_do() -> None:
    alone = choose_broker(counted({1: 2}), TOPIC, "fair", source=BrokerId(1))
    assert alone.broker is None
    assert alone.reason == (
        "no active broker besides broker 1 can take /default/orders (1 is active); "
        "start or activate one"
    )
    nobody = choose_broker(ClusterLoad(brokers={}), TOPIC, "fair")
    assert nobody.broker is None
    assert "none is registered" in nobody.reason
