"""Tables with the columns of the reference's exporter hold the same messages, each once."""

from pathlib import Path

import pytest

from pydanube.runtime.randomness import SystemRandomness
from pydanube.spark.source.planning import Limits
from pydanube.tables import maintenance
from pydanube.tables.crew import HereWorkers
from pydanube.tables.reference_layout import ReferenceLayoutTable
from pydanube.tables.verifying_parts import Check, verify
from tests.support.crews import UnsteadyWorkers, crew_of
from tests.support.lake_tables import Lake, MemoryToolbox, MemoryTopic, SchemaShelf, exporter
from tests.support.lake_tables import export_all as export

TOPIC = "/default/orders"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake("iceberg", tmp_path)


def stored(lake: Lake) -> list[dict[str, object]]:
    rows = lake.catalog().load_table("default.orders").scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row["offset"])


def test_payloads_without_a_schema_have_the_eight_columns(lake: Lake) -> None:
    topic = MemoryTopic()
    topic.publish(b"a", b"b", key="k")
    table = ReferenceLayoutTable(lake.table(), TOPIC)
    export(exporter(lake, topic, SchemaShelf(), table=table))
    first, second = stored(lake)
    assert first == {
        "offset": 0,
        "publish_time": 1_700_000_000_000,
        "producer_name": "p",
        "routing_key": "k",
        "schema_id": None,
        "schema_version": None,
        "payload": b"a",
        "attributes_json": '{"n":"0"}',
    }
    assert (second["offset"], second["payload"]) == (1, b"b")


def test_fields_follow_the_four_columns_and_the_table_can_be_looked_after(lake: Lake) -> None:
    topic, schemas = MemoryTopic(), SchemaShelf()
    schemas.add(1, 1, {"id": {"type": "integer"}})
    topic.publish(*({"id": number} for number in range(9)), b"bad", schema=(1, 1))
    table = ReferenceLayoutTable(lake.table(), TOPIC)
    crew = crew_of(UnsteadyWorkers())
    assert export(exporter(lake, topic, schemas, table=table, crew=crew)) == 1
    schemas.add(1, 2, {"id": {"type": "integer"}, "note": {"type": "string"}})
    topic.publish({"id": 10, "note": "n"}, schema=(1, 2))
    export(exporter(lake, topic, schemas, table=table, limits=Limits(rows=1)))
    assert list(stored(lake)[0]) == [
        "offset",
        "publish_time",
        "producer_name",
        "routing_key",
        "id",
        "note",
    ]
    toolbox = MemoryToolbox(lake, topic, schemas, table)
    join = maintenance.join_by(HereWorkers(), toolbox)
    assert maintenance.compact(table, SystemRandomness(), join=join).files_after == 1
    check = Check(starts={}, may_lack=False, content=True)
    verdict = verify("t", lake.positions(), topic.states(), check, HereWorkers(), toolbox)
    assert verdict.is_exact, verdict
    assert (verdict.rows, verdict.dead_letters, verdict.compared) == (10, 1, 11)
    assert [row["id"] for row in stored(lake)] == [*range(9), 10]
    topic.messages[TOPIC][3]["payload"] = b'{"id": 33}'
    verdict = verify("t", lake.positions(), topic.states(), check, HereWorkers(), toolbox)
    assert verdict.findings[0].different == ["3"]
