"""Tables without a catalogue: a commit is a file that nobody else can create."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import StaticTable, Table
from typing_extensions import override

from pydanube.errors import (
    AccessDenied,
    Conflict,
    Corruption,
    InvalidRequest,
    NotSupported,
    Unavailable,
)
from pydanube.runtime import blocking
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.randomness import SeededRandomness
from pydanube.tables import bare_catalog
from pydanube.tables.bare_catalog import BareCatalog, open_bare_catalog, outdated
from pydanube.tables.expiring import vacuum
from pydanube.tables.iceberg import IcebergLakeTable, happens
from pydanube.tables.numbered_files import DirectoryFiles, check_files, open_files
from tests.support.lake_tables import (
    Lake,
    MemoryTopic,
    SchemaShelf,
    check_complete,
    export_all,
    exporter,
)

COLUMNS = pa.schema([("id", pa.int64())])
NAME = "shop.orders"


@pytest.fixture
def catalog(tmp_path: Path) -> BareCatalog:
    return open_bare_catalog("lake", {"warehouse": str(tmp_path)})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "shop" / "orders"


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": numbers}, schema=COLUMNS)


def ids(table: Any) -> list[int]:
    return sorted(table.scan().to_arrow().column("id").to_pylist())


def created(catalog: BareCatalog) -> Table:
    made = catalog.create_table(NAME, COLUMNS, properties={"commit.retry.num-retries": "0"})
    assert made.metadata_location.endswith("shop/orders/metadata/v1.metadata.json")
    return made


def test_a_commit_is_the_file_of_the_next_version(catalog: BareCatalog, place: Path) -> None:
    table = created(catalog)
    for number in range(3):
        table.append(rows(number))
    versions = {path.name for path in place.rglob("*.metadata.json")}
    assert versions == {f"v{number}.metadata.json" for number in (1, 2, 3, 4)}
    assert (place / "metadata" / "version-hint.text").read_text() == "4"
    assert ids(catalog.load_table(NAME)) == [0, 1, 2]


def test_anybody_opens_the_table_by_its_path(catalog: BareCatalog, place: Path) -> None:
    created(catalog).append(rows(1, 2))
    assert ids(StaticTable.from_metadata(str(place))) == [1, 2]
    assert ids(StaticTable.from_metadata(str(place / "metadata" / "v2.metadata.json"))) == [1, 2]


def test_of_two_commits_on_one_version_one_happens(catalog: BareCatalog, tmp_path: Path) -> None:
    created(catalog)
    other = open_bare_catalog("other", {"warehouse": f"file://{tmp_path}/"})
    first, second = catalog.load_table(NAME), other.load_table(NAME)
    first.append(rows(1))
    with pytest.raises(CommitFailedException):
        second.append(rows(2))
    assert ids(other.load_table(NAME)) == [1]


def test_somebody_who_takes_the_number_in_between_wins(
    catalog: BareCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requirements were met when they were looked at: the number alone decides."""
    table = created(catalog)
    other = open_bare_catalog("other", {"warehouse": str(tmp_path)}).load_table(NAME)
    overtake(catalog, other, monkeypatch)
    with pytest.raises(CommitFailedException, match="has a version 2 by now"):
        table.append(rows(8))
    assert ids(catalog.load_table(NAME)) == [7]


def overtake(catalog: BareCatalog, other: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another writer commit when the requirements of a commit have been looked at."""
    stage = catalog._update_and_stage_table

    def overtaken(*arguments: Any) -> Any:
        staged = stage(*arguments)
        other.append(rows(7))
        return staged

    monkeypatch.setattr(catalog, "_update_and_stage_table", overtaken)


def test_numbers_that_are_given_twice_lose_a_commit(
    catalog: BareCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug put in on purpose: this is what the store is tested for."""
    created(catalog)
    careless = BareCatalog("lake", Careless(str(tmp_path)), SeededRandomness(1), {})
    monkeypatch.setattr(careless, "prove", lambda: None)
    overtake(careless, catalog.load_table(NAME), monkeypatch)
    careless.load_table(NAME).append(rows(8))
    assert ids(catalog.load_table(NAME)) == [8], "7 was committed, and is gone"


def test_of_many_who_create_a_file_one_does(tmp_path: Path) -> None:
    won: list[tuple[int, int]] = []

    def run(mine: int) -> None:
        files = DirectoryFiles(str(tmp_path))
        for number in range(40):
            if files.create(f"a/v{number}", b"%d" % mine):
                won.append((number, mine))

    threads = [threading.Thread(target=run, args=(mine,)) for mine in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number, _ in won) == list(range(40))
    for number, mine in won:
        assert (tmp_path / "a" / f"v{number}").read_bytes() == b"%d" % mine
    assert len(os.listdir(tmp_path / "a")) == 40, "nothing else is left"


@pytest.mark.parametrize(
    "hint", [None, b"", b"1", b"2", b"2\n", b"999", b"0", b"-1", b"v3", b"9" * 5_000, b"\xff"]
)
def test_the_hint_may_be_anything(catalog: BareCatalog, place: Path, hint: bytes | None) -> None:
    table = created(catalog)
    for number in range(40):
        table = table.transaction().set_properties({"n": str(number)}).commit_transaction()
    path = place / "metadata" / "version-hint.text"
    if hint is None:
        path.unlink()
    else:
        path.write_bytes(hint)
    assert catalog.load_table(NAME).properties["n"] == "39"


class Hintless(DirectoryFiles):
    """Has no space left for hints."""

    @override
    def replace(self, path: str, content: bytes) -> None:
        raise Unavailable("no space left")


def test_a_hint_that_cannot_be_written_costs_no_commit(tmp_path: Path, place: Path) -> None:
    catalog = BareCatalog("lake", Hintless(str(tmp_path)), SeededRandomness(1), {})
    created(catalog).append(rows(1))
    assert not (place / "metadata" / "version-hint.text").exists()
    assert ids(catalog.load_table(NAME)) == [1]


def test_a_number_whose_base_was_removed_is_no_commit(catalog: BareCatalog, place: Path) -> None:
    table = created(catalog)
    late = catalog.load_table(NAME)
    table.append(rows(1))
    table.append(rows(2))
    for number in (1, 2):
        (place / "metadata" / f"v{number}.metadata.json").unlink()
    with pytest.raises(Unavailable, match="removed before the commit"):
        catalog._create(("shop", "orders"), 2, late.metadata)
    assert ids(catalog.load_table(NAME)) == [1, 2]


def test_old_versions_are_removed_and_the_table_stays(
    catalog: BareCatalog, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bare_catalog, "VERSIONS_KEPT", 2)
    table = created(catalog)
    with table.transaction() as changing:  # This would remove some behind our back.
        changing.set_properties(
            {
                "write.metadata.delete-after-commit.enabled": "true",
                "write.metadata.previous-versions-max": "1",
            }
        )
    for number in range(6):
        table.append(rows(number))
    (place / "metadata" / "v9.metadata.json.host.1.2.new").write_text("half")
    files = sorted((place / "metadata").glob("v?.metadata.json*"))
    assert len(files) == 9
    then = time.time() - 30 * 86_400
    for path in files:
        if path.name != "v5.metadata.json":  # It is young, so it and those above it stay.
            os.utime(path, (then, then))
    lake = IcebergLakeTable(catalog, NAME, "/shop/orders")
    now_ms = SystemClock().now_ms()
    assert vacuum(lake, now_ms, dry_run=True).removed == 5
    assert vacuum(lake, now_ms).removed == 5
    left = sorted(path.name for path in (place / "metadata").glob("v?.metadata.json*"))
    assert left == [f"v{number}.metadata.json" for number in (5, 6, 7, 8)]
    (place / "metadata" / "version-hint.text").unlink()
    catalog.load_table(NAME).append(rows(6))
    assert ids(StaticTable.from_metadata(str(place))) == list(range(7))


def test_the_newest_versions_are_never_old() -> None:
    names = [f"v{number}.metadata.json" for number in range(1, 251)]
    assert outdated(reversed(names)) == names[:150]
    assert outdated([*names[-100:], "version-hint.text", "snap-1.avro"]) == []


def test_a_directory_of_something_else_is_refused(catalog: BareCatalog, place: Path) -> None:
    with pytest.raises(NoSuchTableError):
        catalog.load_table(NAME)
    place.mkdir(parents=True)
    (place / "metadata").mkdir()
    (place / "metadata" / "v1.metadata.json.host.1.2.new").write_text("killed while creating")
    with pytest.raises(NoSuchTableError):
        catalog.load_table(NAME)
    strange = place / "metadata" / "00000-b2.metadata.json"
    strange.write_text("a table of a catalogue")
    for use in (catalog.load_table, lambda name: catalog.create_table(name, COLUMNS)):
        with pytest.raises(Conflict, match=r"holds 00000-b2\.metadata\.json and no Iceberg"):
            use(NAME)
    strange.unlink()
    (place / "_delta_log").mkdir()
    with pytest.raises(Conflict, match="is a Delta table"):
        catalog.create_table(NAME, COLUMNS)
    (place / "_delta_log").rmdir()
    assert created(catalog).name() == ("shop", "orders")


def test_a_table_that_was_moved_is_refused(catalog: BareCatalog, tmp_path: Path) -> None:
    created(catalog).append(rows(1))
    os.rename(tmp_path / "shop", tmp_path / "store")
    with pytest.raises(Conflict, match="says that it lies at file://"):
        catalog.load_table("store.orders")


def test_damaged_metadata_is_named(catalog: BareCatalog, place: Path) -> None:
    created(catalog)
    for damage in (b"{", b"\xff\xfe", b"{}"):
        (place / "metadata" / "v1.metadata.json").write_bytes(damage)
        with pytest.raises(Corruption, match=r"v1\.metadata\.json is no metadata"):
            catalog.load_table(NAME)


@pytest.mark.parametrize("name", ["orders", "a.b.c", "a..b", "../etc.x", "a.b/c", ".a.b", "a.\\b"])
def test_names_that_could_leave_the_root_are_refused(catalog: BareCatalog, name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"write it as namespace\.name"):
        catalog.load_table(name)


@pytest.mark.parametrize("root", ["data", "./data", "", "s3://", "s3:///x", "gs://b/x", "file://x"])
def test_places_that_make_no_sense_are_refused(root: str) -> None:
    with pytest.raises(InvalidRequest, match="name a directory by its whole path"):
        open_files(root, {})
    with pytest.raises(InvalidRequest, match="has no warehouse"):
        open_bare_catalog("lake", {})


def test_one_place_has_one_name_however_it_is_written(tmp_path: Path) -> None:
    assert open_files("/data/x/", {}).root == open_files("file:///data/x", {}).root
    assert open_files("s3a://bucket/x/", {}).root == "s3://bucket/x"
    for root in (str(tmp_path), f"file://{tmp_path}"):
        open_bare_catalog("lake", {"warehouse": root}).prove()
    assert os.listdir(tmp_path / ".danube") == []


class Careless(DirectoryFiles):
    """Replaces what it should keep."""

    @override
    def create(self, path: str, content: bytes) -> bool:
        self.replace(path, content)
        return True


class Liar(Careless):
    """Says that it kept what it has replaced."""

    @override
    def create(self, path: str, content: bytes) -> bool:
        return not self.has(path) if super().create(path, content) else False


class Full(DirectoryFiles):
    """Says that every name is taken."""

    @override
    def create(self, path: str, content: bytes) -> bool:
        return False


@pytest.mark.parametrize("kind", [Careless, Liar, Full])
def test_a_store_that_does_not_keep_its_word_is_refused(
    kind: type[DirectoryFiles], tmp_path: Path
) -> None:
    files = kind(str(tmp_path))
    with pytest.raises(NotSupported, match="catalogue of type rest, glue, s3tables or sql"):
        check_files(files, SeededRandomness(1))
    assert list(tmp_path.rglob("probe-*")) == []
    catalog = BareCatalog("lake", files, SeededRandomness(1), {})
    table = IcebergLakeTable(catalog, NAME, "/shop/orders")
    for use in (table.check, lambda: table.create(COLUMNS)):
        with pytest.raises(NotSupported, match="No table was changed"):
            use()
    assert not (tmp_path / "shop").exists()


def test_a_store_that_breaks_its_word_later_is_no_unknown_outcome(
    catalog: BareCatalog, tmp_path: Path
) -> None:
    created(catalog)
    careless = BareCatalog("lake", Careless(str(tmp_path)), SeededRandomness(1), {})
    changing = careless.load_table(NAME).transaction()
    changing.append(rows(1))
    with pytest.raises(NotSupported):
        happens(changing)
    assert ids(catalog.load_table(NAME)) == []


def test_a_file_system_without_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(blocking.os, "link", refused)
    with pytest.raises(NotSupported, match="has no hard links"):
        check_files(DirectoryFiles(str(tmp_path)), SeededRandomness(1))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_troubles_of_directories_have_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="is no directory of tables"):
        DirectoryFiles(str(tmp_path / "file")).create("a/b", b"")
    for number, kind in ((13, AccessDenied), (30, AccessDenied), (28, Unavailable)):

        def fails(*_: object, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patched:
            patched.setattr(blocking.os, "link", fails)
            with pytest.raises(kind, match="see to the directory"):
                DirectoryFiles(str(tmp_path)).create("a/b", b"")
    assert not DirectoryFiles(str(tmp_path)).has("file/below")


def test_whoever_is_refused_because_of_its_own_work_has_done_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(blocking.os, "link", twice)
    files = DirectoryFiles(str(tmp_path))
    assert files.create("a/v1", b"mine")
    assert not files.create("a/v1", b"other")
    assert files.names("a/") == ["v1"], "what is written beside is gone"


class LosesAnswers(DirectoryFiles):
    """Creates versions above the second, and tells nobody, or does not create them either."""

    happens = True
    lost = 0

    @override
    def create(self, path: str, content: bytes) -> bool:
        if self.lost or path.startswith(".danube") or path.endswith("v1.metadata.json"):
            return super().create(path, content)
        self.lost += 1
        if self.happens:
            assert super().create(path, content)
        raise Unavailable("the answer was lost")


@pytest.mark.parametrize("happens", [True, False])
def test_a_commit_whose_answer_is_lost_is_recognised(tmp_path: Path, happens: bool) -> None:
    topic, schemas = MemoryTopic(), SchemaShelf()
    schemas.add(1, 1, {"id": {"type": "integer"}})
    topic.publish({"id": 0}, {"id": 1}, schema=(1, 1))
    lake = Lake("bare iceberg", tmp_path)
    files = LosesAnswers(f"{tmp_path}/warehouse")
    files.happens = happens
    catalog = BareCatalog("lake", files, SeededRandomness(1), {})
    table = IcebergLakeTable(catalog, "default.orders", topic.topic)
    assert export_all(exporter(lake, topic, schemas, table=table)) == 1
    assert files.lost == 1
    check_complete(topic, lake)
    # A commit that may yet happen keeps its files; nobody else has them.
    assert len(lake.data_files()) == (1 if happens else 2)
