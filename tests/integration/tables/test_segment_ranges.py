"""Ranges that begin and end at, before and behind the edges of segments: each message once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from pydanube.spark.source.planning import Limits
from pydanube.tables.exporter import Exporter
from pydanube.tables.opening import surroundings_of
from pydanube.tables.settings import TableSetting
from pydanube.tables.topic_source import BrokerTopic
from pydanube.testing.broker import Broker
from tests.support.spark_topics import Topics, check_rows, small_broker

TOPIC = "/default/edges"
EDGE = 10
ROWS = 25


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Offsets 0-9 and 10-19 are segments, 20-24 the tail, if nothing seals it meanwhile."""
    with small_broker() as broker:
        topics = Topics(broker.url)
        for first in range(0, ROWS, EDGE):
            topics.publish(TOPIC, range(first, min(first + EDGE, ROWS)))
            if first + EDGE <= ROWS:
                topics.wait_sealed(TOPIC)
        edges = {end for _, end, key in topics.segments(TOPIC) if key is not None}
        assert {EDGE, 2 * EDGE} <= edges
        topics.close()
        yield broker


@pytest.mark.parametrize("direct", [False, True], ids=["broker", "store"])
@pytest.mark.parametrize("rows", [EDGE - 1, EDGE, EDGE + 1, 1_000])
def test_ranges_meet_segments_anywhere(
    broker: Broker, tmp_path: Path, rows: int, direct: bool
) -> None:
    from deltalake import DeltaTable

    setting = TableSetting(format="delta", table=f"{tmp_path}/edges")
    with (
        surroundings_of(broker.url) as given,
        given.toolbox_of(TOPIC, setting).open() as tools,
    ):
        source = BrokerTopic(given.access, TOPIC, "auto" if direct else "broker")
        rules = structs.replace(setting.rules(), limits=Limits(rows=rows))
        running = Exporter(structs.replace(tools, source=source), rules)
        commits = 0
        while running.export() is not None:
            commits += 1
    assert commits == -(-ROWS // rows)
    check_rows(DeltaTable(setting.table).to_pyarrow_table().to_pylist(), range(ROWS))
