"""Upkeep changes files and snapshots, never what a table holds nor how far it is."""

from pathlib import Path

import pytest

from pydanube.errors import Conflict
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.randomness import SystemRandomness
from pydanube.spark.source.planning import Limits
from pydanube.tables import maintenance
from tests.support.lake_tables import (
    FORMATS,
    Lake,
    MemoryTopic,
    SchemaShelf,
    check_complete,
    export_all,
    exporter,
)


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


@pytest.fixture
def topic(lake: Lake) -> MemoryTopic:
    """A topic that is in its table, in six files of two versions."""
    topic = MemoryTopic()
    topic.publish(*({"id": number} for number in range(12)), schema=(1, 1))
    export_all(exporter(lake, topic, shelf(), limits=Limits(rows=3)))
    topic.publish({"id": 12, "note": "new"}, {"id": 13, "note": None}, schema=(1, 2))
    export_all(exporter(lake, topic, shelf(), limits=Limits(rows=1)))
    return topic


def shelf() -> SchemaShelf:
    schemas = SchemaShelf()
    schemas.add(1, 2, {"id": {"type": "integer"}, "note": {"type": "string"}})
    schemas.add(1, 1, {"id": {"type": "integer"}})
    return schemas


def test_small_files_are_joined_and_the_table_goes_on(lake: Lake, topic: MemoryTopic) -> None:
    before = lake.positions()
    planned = maintenance.compact(lake.table(), SystemRandomness(), dry_run=True)
    assert planned.change == "nothing"
    done = maintenance.compact(lake.table(), SystemRandomness())
    assert (done.change, done.files_before, done.files_after) == ("compacted", 6, 1)
    assert lake.positions() == before
    check_complete(topic, lake)
    again = maintenance.compact(lake.table(), SystemRandomness())
    assert again.change == "nothing"
    topic.publish({"id": 14}, schema=(1, 1))
    export_all(exporter(lake, topic, shelf()))
    rows = check_complete(topic, lake)
    assert [row["note"] for row in rows[-3:]] == ["new", None, None]


def test_what_a_table_was_is_forgotten_and_what_it_is_stays(lake: Lake, topic: MemoryTopic) -> None:
    maintenance.compact(lake.table(), SystemRandomness())
    now_ms = SystemClock().now_ms()
    done = maintenance.expire(lake.table(), now_ms)
    assert (done.change, done.removed) == ("expired", 0)
    check_complete(topic, lake)
    if lake.kind == "iceberg":
        done = maintenance.expire(lake.table(), now_ms + 60_000, keep_days=0)
        assert done.removed == 6
        check_complete(topic, lake)
        topic.publish({"id": 14}, schema=(1, 1))
        export_all(exporter(lake, topic, shelf()))
        check_complete(topic, lake)


def test_a_commit_that_comes_between_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, topic = Lake("iceberg", tmp_path), MemoryTopic()
    topic.publish(*({"id": number} for number in range(4)), schema=(1, 1))
    export_all(exporter(lake, topic, shelf(), limits=Limits(rows=2)))
    write = maintenance._write_joined

    def outrun(*arguments: object) -> None:
        write(*arguments)
        topic.publish({"id": 4}, schema=(1, 1))
        export_all(exporter(lake, topic, shelf()))

    monkeypatch.setattr(maintenance, "_write_joined", outrun)
    with pytest.raises(Conflict, match="run it again"):
        maintenance.compact(lake.table(), SystemRandomness())
    check_complete(topic, lake)
    assert not [name for name in lake.data_files() if "joined" in name]
