"""Tables as sinks: each batch once, keys, new columns, writers that race."""

import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from pydanube.errors import Conflict, InvalidRequest, Unavailable
from pydanube.pipelines import iceberg_tables, lake_parts
from pydanube.pipelines.delta_tables import DeltaLake
from pydanube.pipelines.errors import FlowRefused
from pydanube.pipelines.iceberg_tables import IcebergLake
from pydanube.pipelines.lake_parts import Part, PartTask
from pydanube.pipelines.lakes import Lake, LastBatch, keyed
from pydanube.pipelines.sql_tables import SqlTable
from pydanube.tables.errors import CommitOutcomeUnknown, TableGuardAltered
from pydanube.tables.iceberg import GUARDED
from tests.support.lake_batches import OFFSETS, batch, between_statements, held, rows


def iceberg(root: Path) -> IcebergLake:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{root}/catalog.db",
        "warehouse": f"file://{root}",
    }
    return IcebergLake(properties, "shop.orders")


def bare(root: Path) -> IcebergLake:
    return IcebergLake({"type": "none", "warehouse": str(root)}, "shop.orders")


LAKES: dict[str, Callable[[Path], Lake]] = {
    "delta": lambda root: DeltaLake(str(root / "orders")),
    "iceberg": iceberg,
    "bare iceberg": bare,
    "sql": lambda root: SqlTable(f"sqlite:///{root}/shop.db", "orders"),
}


@pytest.fixture(params=LAKES)
def lake(request, tmp_path) -> Lake:
    return LAKES[request.param](tmp_path)


class TestBatches:
    def test_a_batch_that_comes_again_is_not_written_again(self, lake):
        first = lake.write(rows(1, 2), batch(0))
        assert lake.write(rows(1, 2), batch(0)) == first
        lake.write(rows(3), batch(1))
        lake.write(rows(1, 2), batch(0))
        assert held(lake) == [1, 2, 3]

    def test_the_table_says_how_far_a_flow_is(self, lake):
        assert lake.last_batch("p/lake") is None
        assert lake.rows() is None
        lake.write(rows(1), batch(3))
        lake.write(rows(2), batch(0, flow="p/other"))
        assert lake.last_batch("p/lake") == LastBatch(query="q1", number=3, offsets=OFFSETS)
        assert lake.last_batch("p/nobody") is None

    def test_flows_and_queries_do_not_take_each_others_batches(self, lake):
        lake.write(rows(1), batch(0))
        lake.write(rows(2), batch(0, flow="p/other"))
        lake.write(rows(3), batch(0, query="q2"))
        assert held(lake) == [1, 2, 3]

    def test_a_batch_without_rows_is_noted(self, lake):
        lake.write(rows(1), batch(0))
        lake.write(rows(), batch(1))
        assert lake.last_batch("p/lake").number == 1
        assert held(lake) == [1]

    def test_a_first_batch_without_rows_makes_the_table(self, lake):
        lake.write(rows(), batch(0))
        assert lake.last_batch("p/lake").number == 0
        assert held(lake) == []


class TestModes:
    def test_an_upsert_replaces_by_key_and_keeps_the_last(self, lake):
        def changed(offsets, keys, values):
            return pa.table({"offset": offsets, "k": keys, "v": values})

        def write(number, table):
            lake.write(table, batch(number), mode="upsert", key=["k"])

        write(0, changed([0, 1], ["a", "b"], [1, 1]))
        write(1, changed([5, 3, 4], ["a", "c", "a"], [9, 1, 5]))
        write(1, changed([5, 3, 4], ["a", "c", "a"], [9, 1, 5]))
        found = {row["k"]: row["v"] for row in lake.rows().to_pylist()}
        assert found == {"a": 9, "b": 1, "c": 1}
        assert len(lake.rows()) == 3
        write(2, changed([5], ["a"], [9]))  # It changes nothing, and is noted.
        assert lake.last_batch("p/lake").number == 2

    def test_complete_replaces_everything_in_one_commit(self, lake):
        lake.write(rows(1, 2), batch(0), mode="complete")
        lake.write(rows(7), batch(1), mode="complete")
        assert held(lake) == [7]
        lake.write(rows(), batch(2), mode="complete")
        assert held(lake) == []
        lake.write(rows(), batch(3), mode="complete")
        assert lake.last_batch("p/lake").number == 3

    def test_many_keys_are_replaced_in_parts_of_one_commit(self, tmp_path, monkeypatch):
        monkeypatch.setattr(iceberg_tables, "KEYS_AT_ONCE_MAX", 2)
        table = iceberg(tmp_path)
        table.write(rows(*range(9)), batch(0), mode="upsert", key=["n"])
        table.write(rows(*range(3, 12)), batch(1), mode="upsert", key=["n"])
        assert held(table) == list(range(12))

    def test_rows_without_a_key_or_an_order_are_refused_with_the_remedy(self):
        with pytest.raises(FlowRefused, match="key names k; the columns are n"):
            keyed(rows(1), ["k"], "t")
        with pytest.raises(FlowRefused, match=r"1 rows for t have no k.*k IS NOT NULL"):
            keyed(rows(1, 2, k=["a", None]), ["k"], "t")
        with pytest.raises(FlowRefused, match="keep the column offset"):
            keyed(rows(1, 2, k=["a", "a"]), ["k"], "t")
        assert keyed(rows(1, 2, k=["a", "b"]), ["k"], "t").num_rows == 2


class TestColumns:
    def test_a_new_column_enters_by_name_and_a_missing_one_is_null(self, lake):
        lake.write(rows(1, a=["x"]), batch(0))
        lake.write(pa.table({"b": [5.5], "n": [2]}), batch(1))
        found = sorted(lake.rows().to_pylist(), key=lambda row: row["n"])
        assert found == [{"n": 1, "a": "x", "b": None}, {"n": 2, "a": None, "b": 5.5}]

    def test_a_column_of_another_type_is_refused_and_nothing_is_left(self, tmp_path):
        table = iceberg(tmp_path)
        table.write(rows(1), batch(0))
        files = sorted(tmp_path.rglob("*.parquet"))
        with pytest.raises(FlowRefused, match=r"do not fit the table shop\.orders"):
            table.write(pa.table({"n": ["text"]}), batch(1))
        assert held(table) == [1]
        assert sorted(tmp_path.rglob("*.parquet")) == files

    def test_files_that_no_commit_can_name_are_removed(self, tmp_path, monkeypatch):
        table = iceberg(tmp_path)
        table.write(rows(1), batch(0))
        files = sorted(tmp_path.rglob("*.parquet"))

        def refuse(*_):
            assert sorted(tmp_path.rglob("*.parquet")) != files
            raise ValueError("no such field")

        monkeypatch.setattr(iceberg_tables, "_add", refuse)
        with pytest.raises(FlowRefused, match="no such field"):
            table.write(rows(2), batch(1))
        assert sorted(tmp_path.rglob("*.parquet")) == files

    def test_a_table_is_cut_by_day_and_column(self, tmp_path):
        table = iceberg(tmp_path)
        day = 86_400_000_000
        times = pa.array([0, 1, day], pa.timestamp("us", "UTC"))
        table.write(
            pa.table({"n": [1, 2, 3], "at": times, "region": ["a", "a", "b"]}),
            batch(0),
            partition_by=["day(at)", "region"],
        )
        assert held(table) == [1, 2, 3]
        assert len(list(tmp_path.rglob("data/*.parquet"))) == 2
        table.write(rows(4, at=pa.array([day], times.type), region=["b"]), batch(1))
        assert held(table) == [1, 2, 3, 4]


class TestRaces:
    @pytest.fixture(params=[iceberg, bare])
    def made(self, request) -> Callable[[Path], IcebergLake]:
        return request.param

    def test_a_commit_that_lost_its_race_is_made_again_once(self, made, tmp_path, monkeypatch):
        table, other = made(tmp_path), made(tmp_path)
        table.write(rows(1), batch(0))
        happens, losses = iceberg_tables.happens, [2, 1]

        def outrun(changing):
            if losses:
                number = losses.pop()
                monkeypatch.setattr(iceberg_tables, "happens", happens)
                other.write(rows(10 + number), batch(number, flow="p/other"))
                monkeypatch.setattr(iceberg_tables, "happens", outrun)
            return happens(changing)

        monkeypatch.setattr(iceberg_tables, "happens", outrun)
        table.write(rows(2), batch(1))
        monkeypatch.setattr(iceberg_tables, "happens", happens)
        assert held(table) == [1, 2, 11, 12]
        assert table.last_batch("p/lake").number == 1

    def test_a_batch_without_rows_is_outrun_like_any_other(self, made, tmp_path, monkeypatch):
        table, other = made(tmp_path), made(tmp_path)
        table.write(rows(1), batch(0))
        happens, outcomes = iceberg_tables.happens, []

        def outrun(changing):
            if not outcomes:
                monkeypatch.setattr(iceberg_tables, "happens", happens)
                other.write(rows(2), batch(0, flow="p/other"))
                monkeypatch.setattr(iceberg_tables, "happens", outrun)
            outcomes.append(happens(changing))
            return outcomes[-1]

        monkeypatch.setattr(iceberg_tables, "happens", outrun)
        table.write(rows(), batch(1))
        assert outcomes == [False, True]
        assert held(table) == [1, 2]

    @pytest.mark.parametrize("happened", [True, False])
    def test_a_commit_whose_answer_is_lost_is_looked_for(
        self, made, tmp_path, monkeypatch, happened
    ):
        table = made(tmp_path)
        table.write(rows(1), batch(0))
        happens, lost = iceberg_tables.happens, [True]

        def silent(changing):
            if lost:
                lost.pop()
                if happened:
                    happens(changing)
                raise CommitOutcomeUnknown("no answer")
            return happens(changing)

        monkeypatch.setattr(iceberg_tables, "happens", silent)
        table.write(rows(2), batch(1))
        assert held(table) == [1, 2]

    def test_a_table_whose_guard_was_altered_is_refused(self, tmp_path):
        table = iceberg(tmp_path)
        table.write(rows(1), batch(0))
        with table._open().transaction() as changing:
            changing.set_properties({GUARDED: "4"})
        with pytest.raises(TableGuardAltered, match="Set it to 0"):
            table.write(rows(2), batch(1))
        assert held(table) == [1]

    def test_a_table_that_somebody_else_made_is_guarded_first(self, tmp_path):
        table = iceberg(tmp_path)
        table._catalog().create_namespace("shop")
        table._catalog().create_table("shop.orders", rows().schema)
        table.write(rows(2), batch(0))
        assert held(table) == [2]
        assert table._open().properties[GUARDED] == "0"


def files_of(tmp_path: Path) -> list[str]:
    return sorted(each.name for each in tmp_path.rglob("part-*.parquet"))


class TestDatabases:
    def test_values_of_all_kinds_are_kept(self, tmp_path):
        table = SqlTable(f"sqlite:///{tmp_path}/shop.db", "orders")
        at = datetime(2026, 11, 15, 12, tzinfo=UTC)
        stored = pa.table(
            {
                "n": pa.array([1], pa.int32()),
                "x": [1.5],
                "yes": [True],
                "raw": [b"\x00\xff"],
                "at": pa.array([at], pa.timestamp("us", "UTC")),
                "day": [date(2026, 11, 15)],
                "tags": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
                "list": [[1, 2]],
                "nothing": pa.array([None], pa.list_(pa.int64())),
                "select": ["a word of SQL"],
            }
        )
        table.write(stored, batch(0))
        (row,) = table.rows().to_pylist()
        assert row.pop("at").replace(tzinfo=UTC) == at
        assert row == {
            "n": 1,
            "x": 1.5,
            "yes": True,
            "raw": b"\x00\xff",
            "day": date(2026, 11, 15),
            "tags": '{"a": "b"}',
            "list": "[1, 2]",
            "nothing": None,
            "select": "a word of SQL",
        }

    def test_a_transaction_that_breaks_off_leaves_nothing(self, tmp_path, monkeypatch):
        table = SqlTable(f"sqlite:///{tmp_path}/shop.db", "orders")
        table.write(rows(1), batch(0))

        def interrupt() -> None:
            raise KeyboardInterrupt

        with between_statements(monkeypatch, interrupt), pytest.raises(KeyboardInterrupt):
            table.write(rows(2, 3, 4), batch(1))
        assert held(table) == [1]
        assert table.last_batch("p/lake").number == 0
        table.write(rows(2, 3, 4), batch(1))
        assert held(table) == [1, 2, 3, 4]

    def test_of_two_writers_of_a_batch_one_fails(self, tmp_path, monkeypatch):
        url = f"sqlite:///{tmp_path}/shop.db"
        table, other = SqlTable(url, "orders"), SqlTable(url, "orders")
        table.write(rows(1), batch(0))
        seen = table.last_batch("p/lake")
        other.write(rows(2), batch(1))
        monkeypatch.setattr(table, "_stands", lambda *_: seen)
        with pytest.raises(Conflict, match="another process"):
            table.write(rows(2), batch(1))
        assert held(table) == [1, 2]

    def test_trouble_is_named_without_the_password(self, tmp_path):
        with pytest.raises(InvalidRequest, match="no database that can be reached"):
            SqlTable("oracle+nothing://me:secret@host/db", "orders")
        nowhere = SqlTable(f"sqlite:///{tmp_path}/no/such/directory.db", "orders")
        with pytest.raises(Unavailable, match="unable to open"):
            nowhere.write(rows(1), batch(0))
        table = SqlTable(f"sqlite:///{tmp_path}/shop.db", "orders")
        with table._engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE orders (n BIGINT UNIQUE)")
        table.write(rows(1), batch(0))
        with pytest.raises(FlowRefused, match="do not fit the table orders"):
            table.write(rows(1), batch(1))
        assert table.last_batch("p/lake").number == 0


class TestParts:
    @pytest.fixture(params=["delta", "iceberg", "bare iceberg"])
    def lake(self, request, tmp_path) -> Lake:
        return LAKES[request.param](tmp_path)

    def test_files_that_tasks_wrote_are_one_commit(self, lake):
        table = rows(1, 2)
        writer = pickle.loads(pickle.dumps(lake.part_writer(table.schema)))
        files = [*writer.write("part-a", table), *writer.write("part-b", rows(3))]
        lake.add(files, table.schema, batch(0))
        assert held(lake) == [1, 2, 3]
        assert lake.last_batch("p/lake") == LastBatch(query="q1", number=0, offsets=OFFSETS)

    def test_files_of_a_batch_that_is_there_are_deleted(self, lake, tmp_path):
        table = rows(1)
        writer = lake.part_writer(table.schema)
        lake.add(writer.write("part-first", table), table.schema, batch(0))
        before = files_of(tmp_path)
        lake.add(writer.write("part-again", table), table.schema, batch(0))
        assert held(lake) == [1]
        assert files_of(tmp_path) == before

    def test_files_of_a_dead_task_are_no_rows(self, lake):
        table = rows(1)
        writer = lake.part_writer(table.schema)
        writer.write("part-dead", table)
        lake.add(writer.write("part-alive", table), table.schema, batch(0))
        assert held(lake) == [1]

    def test_a_file_may_bring_a_column_and_lack_another(self, lake):
        lake.write(rows(1, a=["x"]), batch(0))
        table = rows(2, b=[5.5])
        lake.add(lake.part_writer(table.schema).write("part-b", table), table.schema, batch(1))
        found = sorted(lake.rows().to_pylist(), key=lambda row: row["n"])
        assert found == [{"n": 1, "a": "x", "b": None}, {"n": 2, "a": None, "b": 5.5}]

    def test_a_file_with_a_column_of_another_type_is_refused_and_deleted(self, lake, tmp_path):
        lake.write(rows(1), batch(0))
        before = files_of(tmp_path)
        table = pa.table({"n": ["text"]})
        files = lake.part_writer(table.schema).write("part-other", table)
        with pytest.raises(FlowRefused, match="do not fit the table"):
            lake.add(files, table.schema, batch(1))
        assert held(lake) == [1]
        assert files_of(tmp_path) == before

    def test_files_can_replace_everything(self, lake):
        lake.write(rows(1, 2), batch(0))
        table = rows(7)
        files = lake.part_writer(table.schema).write("part-all", table)
        lake.add(files, table.schema, batch(1), mode="complete")
        assert held(lake) == [7]
        lake.add([], table.schema, batch(2), mode="complete")
        assert held(lake) == []

    def test_parts_of_a_partitioned_table_have_all_columns(self, lake):
        table = rows(1, 2, 3, region=["a", "b", None])
        writer = lake.part_writer(table.schema, ["region"])
        lake.add(writer.write("part-a", table), table.schema, batch(0), partition_by=["region"])
        lake.write(rows(4, region=["b"], late=[1]), batch(1), partition_by=["region"])
        parts = [pickle.loads(pickle.dumps(each)) for each in lake.parts()]
        assert len(parts) == 4
        found = pa.concat_tables([each.read() for each in parts]).sort_by("n")
        assert found.to_pydict() == {
            "n": [1, 2, 3, 4],
            "region": ["a", "b", None, "b"],
            "late": [None, None, None, 1],
        }

    def test_a_task_hands_back_little_and_writes_the_rest(self, lake, monkeypatch):
        table = rows(*range(100))
        writer = lake.part_writer(table.schema)

        def done(small_bytes: int) -> Part:
            task = pickle.loads(pickle.dumps(PartTask(writer, table.schema, small_bytes)))
            (answer,) = task(iter(table.to_batches(max_chunksize=10)))
            return msgspec.msgpack.decode(answer.column("answer")[0].as_py(), type=Part)

        assert done(10_000).files == []
        assert done(10_000).small != b""
        assert sum(each.rows for each in done(10).files) == done(10).rows == 100
        monkeypatch.setattr(lake_parts, "FILE_BYTES", 200)
        assert len(done(10_000).files) > 2
