"""Tables of a real PostgreSQL as sinks: every batch once, whoever else writes and whatever dies."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from itertools import count
from threading import Barrier

import pyarrow as pa
import pytest
import sqlalchemy as sql

from pydanube.errors import Conflict, Unavailable
from pydanube.pipelines.errors import FlowRefused
from pydanube.pipelines.sql_tables import SqlTable
from tests.support.lake_batches import batch, between_statements, held, rows
from tests.support.postgres_server import PostgresServer

RACES = 5
_numbers = count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.fixture
def url(server) -> str:
    return server.database(f"shop_{next(_numbers)}")


def at_once(*work: Callable[[], object]) -> list[object]:
    """Run all at the same moment; return what each returned or raised."""
    barrier = Barrier(len(work))

    def run(one: Callable[[], object]) -> object:
        barrier.wait(30)
        try:
            return one()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(run, work))


class TestRows:
    def test_batches_come_once_with_new_columns_and_by_key(self, url):
        table = SqlTable(url, "orders")
        table.write(rows(1, 2, name=["a", "b"]), batch(0), mode="upsert", key=["name"])
        table.write(
            rows(3, 4, name=["b", "c"], x=[1.5, None]), batch(1), mode="upsert", key=["name"]
        )
        table.write(rows(1, 2, name=["a", "b"]), batch(0), mode="upsert", key=["name"])
        assert held(table) == [1, 3, 4]
        assert table.last_batch("p/lake").number == 1
        table.write(rows(9, name=["z"], x=[0.5]), batch(2), mode="complete")
        assert table.rows().to_pylist() == [{"n": 9, "name": "z", "x": 0.5}]

    def test_values_of_all_kinds_are_kept(self, url):
        stored = {
            "n": 2**62,
            "x": 1.5,
            "yes": True,
            "raw": b"\x00\xff",
            "at": datetime(2026, 11, 15, 12, tzinfo=UTC),
            "day": date(2026, 11, 15),
            "price": Decimal("12.50"),
            "select": "a word of SQL: 'ü'; --",
            "nothing": None,
        }
        table = SqlTable(url, "public.orders")
        table.write(pa.Table.from_pylist([stored]), batch(0))
        assert table.rows().to_pylist() == [stored]

    def test_rows_of_a_table_with_a_key_are_found_by_an_index(self, url):
        name = "a_table_whose_name_is_nearly_as_long_as_names_may_be_in_postgres"[:63]
        table = SqlTable(url, name)
        table.write(rows(1, name=["a"]), batch(0), mode="upsert", key=["name"])
        (index,) = sql.inspect(sql.create_engine(url, poolclass=sql.NullPool)).get_indexes(name)
        assert index["column_names"] == ["name"]

    def test_what_a_column_cannot_hold_changes_nothing(self, url):
        table = SqlTable(url, "orders")
        table.write(rows(1, name=["a"]), batch(0))
        with pytest.raises(FlowRefused, match="do not fit the table orders"):
            table.write(rows(2, name=["\x00"]), batch(1))
        assert held(table) == [1]
        assert table.last_batch("p/lake").number == 0


class TestRaces:
    def test_flows_that_begin_at_once_in_an_empty_database_all_write(self, server):
        for _ in range(RACES):
            url = server.database(f"shop_{next(_numbers)}")
            tables = [SqlTable(url, "a"), SqlTable(url, "a"), SqlTable(url, "b")]
            flows = [f"p/{number}" for number in range(len(tables))]
            found = at_once(
                *(
                    partial(table.write, rows(1), batch(0, flow=flow))
                    for table, flow in zip(tables, flows, strict=True)
                )
            )
            assert found == [0, 0, 0]
            assert held(tables[0]) == [1, 1]
            assert held(tables[2]) == [1]

    def test_columns_that_two_flows_add_at_once_are_there(self, url):
        tables = [SqlTable(url, "a"), SqlTable(url, "a")]
        for number in range(RACES):
            found = at_once(
                *(
                    partial(table.write, rows(1, **{f"c{number}": ["x"]}), batch(number, flow=flow))
                    for table, flow in zip(tables, ("p/1", "p/2"), strict=True)
                )
            )
            assert found == [number, number]
        assert len(held(tables[0])) == 2 * RACES

    def test_a_first_batch_that_two_write_at_once_is_there_once(self, server):
        for _ in range(RACES):
            url = server.database(f"shop_{next(_numbers)}")
            tables = [SqlTable(url, "a"), SqlTable(url, "a")]
            found = at_once(*(partial(table.write, rows(1, 2), batch(0)) for table in tables))
            assert 0 in found
            assert all(each == 0 or type(each) is Conflict for each in found), found
            assert held(tables[0]) == [1, 2]


class TestFailures:
    def test_a_server_that_was_away_gets_the_next_batch(self, server, url):
        table = SqlTable(url, "orders")
        table.write(rows(1), batch(0))
        server.kill()
        with pytest.raises(Unavailable, match="the database of orders failed"):
            table.write(rows(2), batch(1))
        server.start()
        table.write(rows(2), batch(1))
        assert held(table) == [1, 2]

    def test_a_server_that_dies_within_a_batch_has_nothing_of_it(self, server, url, monkeypatch):
        table = SqlTable(url, "orders")
        table.write(rows(1), batch(0))
        with between_statements(monkeypatch, server.kill), pytest.raises(Unavailable):
            table.write(rows(2, 3, 4), batch(1))
        server.start()
        assert held(table) == [1]
        assert table.last_batch("p/lake").number == 0
        table.write(rows(2, 3, 4), batch(1))
        table.write(rows(2, 3, 4), batch(1))
        assert held(table) == [1, 2, 3, 4]
