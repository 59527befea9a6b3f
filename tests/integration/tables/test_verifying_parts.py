"""A table that is not what its topic says is found out, however it is cut into parts."""

from pathlib import Path

import pytest

from pydanube.tables import verifying_parts
from pydanube.tables.lake import Run
from pydanube.tables.verifying import Verdict
from pydanube.tables.verifying_parts import Check, verify
from tests.support.crews import UnsteadyWorkers
from tests.support.lake_tables import (
    FORMATS,
    Lake,
    MemoryToolbox,
    MemoryTopic,
    SchemaShelf,
    export_all,
    exporter,
)

TOPIC = "/default/orders"


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


@pytest.fixture
def schemas() -> SchemaShelf:
    shelf = SchemaShelf()
    shelf.add(1, 1, {"id": {"type": "integer"}, "to": {"type": "object", "properties": {}}})
    return shelf


def filled(lake: Lake, schemas: SchemaShelf) -> MemoryTopic:
    topic = MemoryTopic(partitions=2)
    for number in range(20):
        payload = b"bad" if number == 13 else {"id": number}
        topic.publish(payload, schema=(1, 1), partition=number % 2)
    export_all(exporter(lake, topic, schemas))
    return topic


def look(lake: Lake, topic: MemoryTopic, schemas: SchemaShelf, content: bool = True) -> Verdict:
    return verify(
        "orders",
        lake.positions(),
        topic.states(),
        Check(starts={}, may_lack=False, content=content),
        UnsteadyWorkers(),
        MemoryToolbox(lake, topic, schemas),
    )


def test_an_exact_table_is_exact_in_every_part(
    lake: Lake, schemas: SchemaShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(lake, schemas)
    monkeypatch.setattr(verifying_parts, "CONTENT_BYTES", 300)
    monkeypatch.setattr(verifying_parts, "PART_ROWS", 4)
    for content in (True, False):
        verdict = look(lake, topic, schemas, content)
        assert verdict.is_exact, verdict
        assert (verdict.rows, verdict.dead_letters, verdict.expected) == (19, 1, 20)
        assert verdict.compared == (20 if content else 0)


def test_what_is_missing_repeated_or_different_is_named(
    lake: Lake, schemas: SchemaShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(lake, schemas)
    monkeypatch.setattr(verifying_parts, "CONTENT_BYTES", 300)
    snapshot = lake.table().load()
    assert snapshot is not None
    assert snapshot.remove([Run(0, 3, 5)])
    topic.messages[f"{TOPIC}-part-1"][7]["payload"] = b'{"id": 1000}'
    first, second = look(lake, topic, schemas).findings
    assert (first.topic, first.missing, first.different) == (f"{TOPIC}-part-0", ["3-5"], [])
    assert (second.missing, second.different) == ([], ["7"])
    assert [each.topic for each in look(lake, topic, schemas, content=False).findings] == [
        f"{TOPIC}-part-0"
    ]


def test_a_topic_that_is_another_one_is_named(lake: Lake, schemas: SchemaShelf) -> None:
    topic = filled(lake, schemas)
    topic.recreate()
    for finding in look(lake, topic, schemas).findings:
        assert finding.trouble is not None
        assert "created anew" in finding.trouble
