"""Batches for tables that are sinks of pipelines, and what the tables hold of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from pydanube.pipelines import sql_tables
from pydanube.pipelines.lakes import BatchId, Lake

OFFSETS = {"orders": {"/default/orders": 7}}


def batch(number: int, query: str = "q1", flow: str = "p/lake") -> BatchId:
    return BatchId(flow=flow, query=query, number=number, offsets=OFFSETS)


def rows(*numbers: int, **columns: list[object]) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), **columns})


def held(lake: Lake, column: str = "n") -> list[object]:
    found = lake.rows()
    assert found is not None
    return sorted(found.column(column).to_pylist(), key=lambda each: (each is not None, each))


@contextmanager
def between_statements(
    monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]
) -> Iterator[None]:
    """Let something happen in the middle of a transaction, after its first two rows."""
    cut = sql_tables._dictionaries

    def interrupted(found: pa.Table) -> Iterator[list[dict[str, object]]]:
        for number, some in enumerate(cut(found)):
            if number == 1:
                happens()
            yield some

    with monkeypatch.context() as patched:
        patched.setattr(sql_tables, "ROWS_AT_ONCE", 2)
        patched.setattr(sql_tables, "_dictionaries", interrupted)
        yield
