"""Tables of databases as sinks, through SQLAlchemy."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from typing_extensions import override

from pydanube.pipelines.definitions import Sink
from pydanube.pipelines.lakes import Lake
from pydanube.pipelines.places import Path
from pydanube.pipelines.sinks.kind import Promise
from pydanube.pipelines.sinks.problems import (
    needs_key_for_upsert,
    not_by_path,
    not_for_topics,
    not_partitioned,
)
from pydanube.pipelines.sinks.table_kind import TableKind

_TABLE = re.compile(r"(?:\w+\.)?\w+")
_TABLES_MAX = 32


class SqlSink(TableKind):
    """A table of a database; a table beside it carries the batch's number."""

    @override
    def problems(self, sink: Sink) -> Iterator[tuple[Path, str]]:
        yield from not_for_topics(sink)
        if sink.table is None or not _TABLE.fullmatch(sink.table):
            yield ("table",), "a sink of a database is a table by name, such as table: orders"
        if sink.url is None:
            yield (), "an sql sink needs url, such as url: ${env:DATABASE_URL}"
        if sink.catalog:
            yield ("catalog",), "is for iceberg sinks, not for sql"
        yield from not_by_path(sink)
        yield from needs_key_for_upsert(sink)
        yield from not_partitioned(sink)

    @override
    def promise(self, sink: Sink, unversioned: Sequence[str]) -> Promise:
        return Promise("exactly once", "rows and the batch's number are one transaction")

    @override
    def table(self, sink: Sink) -> Lake:
        assert sink.table is not None, "it was checked"
        return self.beside(sink, sink.table)

    @override
    def beside(self, sink: Sink, place: str) -> Lake:
        assert sink.url is not None, "it was checked"
        return _opened(sink.url, place)


@lru_cache(maxsize=_TABLES_MAX)
def _opened(url: str, table: str) -> Lake:
    # Not imported with the module: SQLAlchemy takes its time.
    from pydanube.pipelines.sql_tables import SqlTable

    return SqlTable(url, table)
