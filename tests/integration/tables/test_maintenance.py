"""Upkeep changes files and snapshots, never what a table holds nor how far it is."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pydanube.errors import Conflict
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.randomness import SystemRandomness
from pydanube.spark.source.planning import Limits
from pydanube.tables import expiring, maintenance
from pydanube.tables.crew import HereWorkers
from pydanube.tables.expiring import Keeping, expire, vacuum
from pydanube.tables.partitioning import read_partitioning
from tests.support.crews import UnsteadyWorkers
from tests.support.lake_tables import (
    FORMATS,
    FaultyTable,
    Killed,
    Lake,
    MemoryToolbox,
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


def compact(lake: Lake, **rest: Any) -> maintenance.Upkeep:
    here = maintenance.join_by(HereWorkers(), MemoryToolbox(lake, MemoryTopic(), shelf()))
    return maintenance.compact(lake.table(), SystemRandomness(), join=here, **rest)


def test_small_files_are_joined_and_the_table_goes_on(lake: Lake, topic: MemoryTopic) -> None:
    before = lake.positions()
    planned = compact(lake, dry_run=True)
    assert planned.change == "nothing"
    done = compact(lake)
    assert (done.change, done.files_before, done.files_after) == ("compacted", 6, 1)
    assert lake.positions() == before
    check_complete(topic, lake)
    again = compact(lake)
    assert again.change == "nothing"
    topic.publish({"id": 14}, schema=(1, 1))
    export_all(exporter(lake, topic, shelf()))
    rows = check_complete(topic, lake)
    assert [row["note"] for row in rows[-3:]] == ["new", None, None]


def test_what_a_table_was_is_forgotten_and_what_it_is_stays(lake: Lake, topic: MemoryTopic) -> None:
    compact(lake)
    now_ms = SystemClock().now_ms()
    done = expire(lake.table(), now_ms, Keeping(snapshots=0))
    assert (done.change, done.removed) == ("expired", 0)
    check_complete(topic, lake)
    if not lake.is_delta:
        later_ms = now_ms + 60_000
        assert expire(lake.table(), later_ms, Keeping(days=0, snapshots=7)).removed == 0
        assert expire(lake.table(), later_ms, Keeping(days=0, snapshots=5), dry_run=True).removed
        assert expire(lake.table(), later_ms, Keeping(days=0, snapshots=5)).removed == 2
        assert expire(lake.table(), later_ms, Keeping(days=0, snapshots=0)).removed == 4
    check_complete(topic, lake)
    topic.publish({"id": 14}, schema=(1, 1))
    export_all(exporter(lake, topic, shelf()))
    check_complete(topic, lake)


def age(path: Path, days: float) -> None:
    then = time.time() - days * 86_400
    os.utime(path, (then, then))


def test_files_of_nobody_are_removed_once_they_are_old(lake: Lake, topic: MemoryTopic) -> None:
    table = FaultyTable(lake.table(), "after write")
    topic.publish({"id": 14}, schema=(1, 1))
    before = lake.data_files()
    with pytest.raises(Killed):
        export_all(exporter(lake, topic, shelf(), table=table))
    (orphan,) = lake.data_files() - before
    for path in lake.root.rglob("*.parquet"):
        # What the table holds is old, too; what was left behind might yet be committed.
        age(path, 2 if path.name == orphan else 30)
    now_ms = SystemClock().now_ms()
    assert vacuum(lake.table(), now_ms).removed == 0
    assert lake.data_files() == {*before, orphan}
    age(next(lake.root.rglob(orphan)), 8)
    assert vacuum(lake.table(), now_ms, dry_run=True).removed == 1
    assert lake.data_files() == {*before, orphan}
    assert vacuum(lake.table(), now_ms).removed == 1
    assert lake.data_files() == before
    export_all(exporter(lake, topic, shelf()))
    check_complete(topic, lake)


def test_files_of_snapshots_that_are_kept_belong_to_somebody(
    lake: Lake, topic: MemoryTopic
) -> None:
    before = lake.data_files()
    compact(lake)
    for path in lake.root.rglob("*.parquet"):
        age(path, 30)
    vacuum(lake.table(), SystemClock().now_ms())
    assert before <= lake.data_files(), "a reader of yesterday's snapshot still finds its files"
    if not lake.is_delta:
        later_ms = SystemClock().now_ms() + 60_000
        expire(lake.table(), later_ms, Keeping(days=0, snapshots=1))
        assert vacuum(lake.table(), later_ms).removed >= len(before)
        assert not before & lake.data_files()
    check_complete(topic, lake)


def test_a_vacuum_that_cannot_match_files_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, topic = Lake("iceberg", tmp_path), MemoryTopic()
    topic.publish({"id": 0}, schema=(1, 1))
    export_all(exporter(lake, topic, shelf()))
    for path in lake.root.rglob("*.parquet"):
        age(path, 30)
    monkeypatch.setattr(expiring, "_path", lambda location: f"elsewhere/{location}")
    with pytest.raises(Conflict, match="nothing was removed"):
        vacuum(lake.table(), SystemClock().now_ms())
    check_complete(topic, lake)


def outrun(
    monkeypatch: pytest.MonkeyPatch, lake: Lake, at: str, meanwhile: Callable[[], object]
) -> None:
    """Let something happen once, after files were joined or right before they are committed."""
    kind = type(lake.table().load())
    original = getattr(kind, at)

    def slow(self: Any, *arguments: Any) -> Any:
        monkeypatch.setattr(kind, at, original)
        if at == "replace":
            meanwhile()
            return original(self, *arguments)
        joined = original(self, *arguments)
        meanwhile()
        return joined

    monkeypatch.setattr(kind, at, slow)


@pytest.mark.parametrize("at", ["join", "replace"])
def test_exporters_go_on_while_files_are_joined(
    lake: Lake, topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def more() -> None:
        topic.publish({"id": 14}, schema=(1, 1))
        export_all(exporter(lake, topic, shelf()))

    outrun(monkeypatch, lake, at, more)
    assert compact(lake).change == "compacted"
    check_complete(topic, lake)
    snapshot = lake.table().load()
    assert snapshot is not None
    assert len(snapshot.files()) == 2


@pytest.mark.parametrize("at", ["join", "replace"])
def test_whoever_joins_the_same_files_later_changes_nothing(
    lake: Lake, topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    outrun(monkeypatch, lake, at, lambda: compact(lake))
    with pytest.raises(Conflict, match="run it again"):
        compact(lake)
    check_complete(topic, lake)
    assert len([name for name in lake.data_files() if "joined" in name]) == 1


def test_workers_join_files_and_only_one_result_of_each_counts(
    lake: Lake, topic: MemoryTopic
) -> None:
    cut = read_partitioning("bucket(3, id)")
    split = Lake(lake.kind, lake.root / "split")
    split.root.mkdir()
    table = split.table(partitioning=cut)
    export_all(exporter(split, topic, shelf(), table=table, limits=Limits(rows=4)))
    workers = UnsteadyWorkers()
    join = maintenance.join_by(workers, MemoryToolbox(split, topic, shelf(), table))
    done = maintenance.compact(table, SystemRandomness(), join=join)
    assert (done.change, done.files_after) == ("compacted", 3)
    assert len(workers.done) > 3
    check_complete(topic, split)


def test_a_table_with_a_key_is_joined_too(lake: Lake) -> None:
    topic = MemoryTopic()
    for number in range(12):
        topic.publish({"id": number}, schema=(1, 1), key=f"k{number % 6}")
    rules = {"upsert_key": ("routing_key",), "limits": Limits(rows=2)}
    export_all(exporter(lake, topic, shelf(), **rules))
    before = sorted(lake.rows(), key=lambda row: row["offset"])
    assert compact(lake).change == "compacted"
    assert sorted(lake.rows(), key=lambda row: row["offset"]) == before
    topic.publish({"id": 12}, schema=(1, 1), key="k0")
    export_all(exporter(lake, topic, shelf(), **rules))
    assert sorted(row["offset"] for row in lake.rows()) == [7, 8, 9, 10, 11, 12]


def test_partitions_of_any_name_are_joined(lake: Lake) -> None:
    topic, schemas = MemoryTopic(), SchemaShelf()
    schemas.add(1, 1, {"id": {"type": "integer"}, "region": {"type": "string"}})
    cut = read_partitioning("region")
    table = lake.table(partitioning=cut)
    rules = {"upsert_key": ("routing_key",), "limits": Limits(rows=2)}
    for number in range(8):
        region = ("a b/=%2F", "ü")[number % 2]
        topic.publish({"id": number, "region": region}, schema=(1, 1), key=f"k{number}")
    export_all(exporter(lake, topic, schemas, table=table, **rules))
    before = sorted(lake.rows(), key=lambda row: row["offset"])
    join = maintenance.join_by(HereWorkers(), MemoryToolbox(lake, topic, schemas, table))
    done = maintenance.compact(table, SystemRandomness(), join=join)
    assert (done.change, done.files_after) == ("compacted", 2)
    assert sorted(lake.rows(), key=lambda row: row["offset"]) == before
