"""One broker per module, and one Spark for all of them."""

from collections.abc import Iterator

import pytest

from pydanube.testing.broker import Broker
from tests.support.spark_cluster import QUICK_TO_START
from tests.support.spark_topics import Topics, small_broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with small_broker() as broker:
        yield broker


@pytest.fixture
def topics(broker: Broker) -> Iterator[Topics]:
    topics = Topics(broker.url)
    yield topics
    topics.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    from pydanube.spark import session

    running = session(
        "tests",
        "local[2,4]",
        **{
            "spark.ui.enabled": False,
            "spark.sql.shuffle.partitions": 2,
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": QUICK_TO_START,
            "spark.log.level": "ERROR",
        },
    )
    yield running
    running.stop()


_numbers = iter(range(1_000_000))


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"/default/orders-{next(_numbers)}"
