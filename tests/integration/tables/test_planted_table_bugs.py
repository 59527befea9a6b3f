"""The law of tables speaks: bugs put in on purpose break it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from pydanube.tables import exporter as exporter_module
from pydanube.tables import iceberg
from pydanube.tables.lake import Commit
from tests.support.lake_tables import (
    FORMATS,
    FaultySnapshot,
    FaultyTable,
    Killed,
    Lake,
    MemoryTopic,
    SchemaShelf,
    check_complete,
    export_all,
    exporter,
)

TOPIC = "/default/orders"


@pytest.fixture
def schemas() -> SchemaShelf:
    shelf = SchemaShelf()
    shelf.add(1, 1, {"id": {"type": "integer"}})
    return shelf


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


class RowsFirst(FaultyTable):
    """Commits rows, and positions in a commit of their own."""

    def load(self) -> Any:
        self.check()
        snapshot = self.table.load()
        return None if snapshot is None else RowsFirstSnapshot(self, snapshot)


class RowsFirstSnapshot(FaultySnapshot):
    def commit(self, commit: Commit) -> bool:
        same = {**commit.positions, **self.snapshot.positions}
        if not self.snapshot.positions:
            same = {name: structs.replace(each, next=0) for name, each in same.items()}
        assert self.snapshot.commit(structs.replace(commit, positions=same))
        self.owner.kill("after commit")
        later = self.owner.table.load()
        assert later is not None
        return later.commit(structs.replace(commit, id="p", files=(), added=pa.schema([])))


def test_positions_in_a_commit_of_their_own_repeat_rows(lake: Lake, schemas: SchemaShelf) -> None:
    topic = MemoryTopic()
    topic.publish({"id": 0}, {"id": 1}, schema=(1, 1))
    faulty = RowsFirst(lake.table(), "after commit")
    with pytest.raises(Killed):
        export_all(exporter(lake, topic, schemas, table=faulty))
    export_all(exporter(lake, topic, schemas))
    with pytest.raises(AssertionError, match="twice"):
        check_complete(topic, lake)


def test_commits_that_are_repeated_by_the_library_repeat_rows(
    tmp_path: Path, schemas: SchemaShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "GUARDED", "some.other.property")
    lake, topic = Lake("iceberg", tmp_path), MemoryTopic()
    topic.publish({"id": 0}, schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    with lake.catalog().load_table("default.orders").transaction() as changing:
        changing.set_properties({"commit.retry.min-wait-ms": "1"})
    topic.publish({"id": 1}, schema=(1, 1))

    class Outrun(FaultyTable):
        def kill(self, at: str) -> None:
            if at == "before commit" and self.at == "race":
                self.at = None
                export_all(exporter(lake, topic, schemas))

    export_all(exporter(lake, topic, schemas, table=Outrun(lake.table(), "race")))
    with pytest.raises(AssertionError, match="twice"):
        check_complete(topic, lake)


def test_dead_letters_behind_the_rows_lose_what_a_new_schema_mends(
    lake: Lake, schemas: SchemaShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = MemoryTopic()
    topic.publish({"id": 0}, b"bad", schema=(1, 1))
    export_all(exporter(lake, topic, schemas))
    topic.publish({"id": 2}, schema=(1, 1))
    topic.publish({"id": 3}, schema=(1, 2))
    attempt = exporter_module._Attempt
    in_order = attempt._set_aside

    def rows_first(self: Any, *dead: Any) -> bool:
        return attempt._commit_rows(self) and in_order(self, *dead)

    with monkeypatch.context() as planted:
        planted.setattr(attempt, "_set_aside", rows_first)
        faulty = FaultyTable(lake.table("orders__dlq"), "before commit")
        with pytest.raises(Killed):
            export_all(exporter(lake, topic, schemas, dead=faulty))
    schemas.add(1, 2, {"id": {"type": "integer"}})
    export_all(exporter(lake, topic, schemas))
    with pytest.raises(AssertionError):
        check_complete(topic, lake, dead=[(TOPIC, 1)])
    with pytest.raises(AssertionError):
        check_complete(topic, lake, dead=[(TOPIC, 1), (TOPIC, 3)])
