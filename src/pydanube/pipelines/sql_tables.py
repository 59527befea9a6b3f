"""Tables of databases as sinks of pipelines, through SQLAlchemy: each batch in one transaction.

The table `danube_batches` of the same database says, by target and flow, which batch of which
query the table holds and the offsets reached. Its row changes in the transaction that brings the
rows, and only from what was seen there: of two writers one fails, and a batch that is there is not
repeated. Tables and columns are made ahead of that, by whoever needs them first.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
import pyarrow as pa
import sqlalchemy as sql
from sqlalchemy.exc import (
    DatabaseError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)
from typing_extensions import override

from pydanube.errors import Conflict, InvalidRequest, Unavailable
from pydanube.pipelines.errors import FlowRefused
from pydanube.pipelines.lakes import BatchId, Lake, LastBatch, WriteMode, keyed

NOTES = "danube_batches"
ROWS_AT_ONCE = 1_000
"""Rows of one statement."""

_Column = sql.Column[Any]


class SqlTable(Lake):
    """A table of a database; its name may have a schema in front, `shop.orders`."""

    def __init__(self, url: str, name: str) -> None:
        try:
            # A connection for each batch: one kept from the last could be long dead by the next.
            self._engine = sql.create_engine(url, poolclass=sql.NullPool)
        except (SQLAlchemyError, ImportError) as error:
            raise InvalidRequest(
                f"a sink's url is no database that can be reached from here: {error}. Write it as "
                "SQLAlchemy does, such as postgresql+psycopg://host/name, and install its driver"
            ) from None
        self._schema, _, self._table_name = name.rpartition(".")

    @property
    @override
    def name(self) -> str:
        return f"{self._schema}.{self._table_name}" if self._schema else self._table_name

    @property
    @override
    def counts(self) -> Literal["version", "snapshot"]:
        return "version"

    @override
    def write(
        self,
        rows: pa.Table,
        batch: BatchId,
        *,
        mode: WriteMode = "append",
        key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
    ) -> int:
        rows = keyed(rows, key, self.name) if mode == "upsert" else rows
        with self._failures():
            notes = self._notes()
            table = self._shaped(rows.schema, key)
            with self._engine.begin() as connection:
                stands = self._stands(connection, notes, batch.flow)
                if stands is not None and stands.includes(batch):
                    return batch.number
                self._note(connection, notes, batch, stands)
                self._remove(connection, table, rows, mode, key)
                for some in _dictionaries(rows):
                    connection.execute(sql.insert(table), some)
        return batch.number

    @override
    def last_batch(self, flow: str) -> LastBatch | None:
        with self._failures():
            if not self._has(NOTES):
                return None
            with self._engine.begin() as connection:
                return self._stands(connection, self._notes(), flow)

    @override
    def columns(self) -> pa.Schema | None:
        found = self._read(ROWS_AT_ONCE)
        return None if found is None else found.schema

    @override
    def rows(self) -> pa.Table | None:
        return self._read(None)

    def _read(self, rows_max: int | None) -> pa.Table | None:
        with self._failures():
            if not self._has(self._table_name):
                return None
            table = self._reflected()
            with self._engine.begin() as connection:
                wanted = sql.select(table).limit(rows_max)
                found = connection.execute(wanted).mappings().all()
        names = [each.name for each in table.columns]
        return pa.table({name: [row[name] for row in found] for name in names})

    def _notes(self) -> sql.Table:
        notes = sql.Table(
            NOTES,
            sql.MetaData(schema=self._schema or None),
            sql.Column("target", sql.String(255), primary_key=True),
            sql.Column("flow", sql.String(255), primary_key=True),
            sql.Column("query", sql.String(255), nullable=False),
            sql.Column("batch", sql.BigInteger, nullable=False),
            sql.Column("offsets", sql.Text, nullable=False),
        )
        self._create(notes)
        return notes

    def _stands(self, connection: sql.Connection, notes: sql.Table, flow: str) -> LastBatch | None:
        wanted = sql.select(notes).where(notes.c.target == self._table_name, notes.c.flow == flow)
        found = connection.execute(wanted).mappings().first()
        if found is None:
            return None
        offsets = msgspec.json.decode(found["offsets"], type=dict[str, dict[str, int]])
        return LastBatch(query=found["query"], number=int(found["batch"]), offsets=offsets)

    def _note(
        self,
        connection: sql.Connection,
        notes: sql.Table,
        batch: BatchId,
        stands: LastBatch | None,
    ) -> None:
        """Note the batch first: whoever else is about to waits here, and then finds it changed."""
        values = {
            "query": batch.query,
            "batch": batch.number,
            "offsets": msgspec.json.encode(batch.offsets).decode(),
        }
        if stands is None:
            who = {"target": self._table_name, "flow": batch.flow}
            try:
                connection.execute(sql.insert(notes).values(**who, **values))
            except IntegrityError as error:
                raise self._outrun(batch) from error
            return
        changed = connection.execute(
            sql.update(notes)
            .where(
                notes.c.target == self._table_name,
                notes.c.flow == batch.flow,
                notes.c.query == stands.query,
                notes.c.batch == stands.number,
            )
            .values(**values)
        )
        if changed.rowcount != 1:
            raise self._outrun(batch)

    def _outrun(self, batch: BatchId) -> Conflict:
        return Conflict(f"another process has written a batch of {batch.flow} to {self.name}")

    def _shaped(self, schema: pa.Schema, key: Sequence[str]) -> sql.Table:
        """Return the table with at least these columns; made or widened ahead of the rows."""
        wanted = [_column(each.name, _type_of(each.type, each.name in key)) for each in schema]
        if not self._has(self._table_name):
            table = self._with(wanted)
            if key:
                # Rows are replaced one by one: without it, each would be looked for in all others.
                sql.Index(None, *(table.c[name] for name in key))
            self._create(table)
        table = self._reflected()
        missing = [each for each in wanted if each.name not in table.columns]
        for each in missing:
            self._add_column(table, each)
        return self._reflected() if missing else table

    def _has(self, table: str) -> bool:
        return sql.inspect(self._engine).has_table(table, self._schema or None)

    def _create(self, table: sql.Table) -> None:
        self._make(
            lambda: table.create(self._engine, checkfirst=True), lambda: self._has(table.name)
        )

    def _make(self, make: Callable[[], None], is_there: Callable[[], bool]) -> None:
        """Make what others may be making at the same moment: the database lets one of them."""
        try:
            make()
        except DatabaseError:
            if not is_there():
                raise

    def _reflected(self) -> sql.Table:
        return self._with([_column(each["name"], each["type"]) for each in self._columns_inside()])

    def _columns_inside(self) -> Sequence[Mapping[str, Any]]:
        return sql.inspect(self._engine).get_columns(self._table_name, self._schema or None)

    def _with(self, columns: Sequence[_Column]) -> sql.Table:
        return sql.Table(self._table_name, sql.MetaData(schema=self._schema or None), *columns)

    def _add_column(self, table: sql.Table, column: _Column) -> None:
        prepare = self._engine.dialect.identifier_preparer
        kind = column.type.compile(self._engine.dialect)
        words = f"ALTER TABLE {prepare.format_table(table)} ADD COLUMN "

        def add() -> None:
            with self._engine.begin() as connection:
                connection.execute(sql.text(f"{words}{prepare.quote(column.name)} {kind}"))

        self._make(add, lambda: column.name in {each["name"] for each in self._columns_inside()})

    def _remove(
        self,
        connection: sql.Connection,
        table: sql.Table,
        rows: pa.Table,
        mode: WriteMode,
        key: Sequence[str],
    ) -> None:
        """Take out what the batch replaces."""
        match mode:
            case "append":
                pass
            case "complete":
                connection.execute(sql.delete(table))
            case "upsert":
                same = [table.c[name] == sql.bindparam(f"key_{name}") for name in key]
                for some in _dictionaries(rows.select(list(key))):
                    keys = [{f"key_{name}": value for name, value in row.items()} for row in some]
                    connection.execute(sql.delete(table).where(*same), keys)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (OperationalError, InterfaceError) as error:
            raise Unavailable(f"the database of {self.name} failed: {error.orig}") from error
        except DatabaseError as error:
            raise FlowRefused(
                f"the rows do not fit the table {self.name}: {error.orig}. Change the step that "
                "makes the column, or give the sink another table"
            ) from error


def _column(name: str, kind: sql.types.TypeEngine[Any]) -> _Column:
    # Always quoted: a column may be called as a word of some database's own.
    return sql.Column(sql.quoted_name(name, quote=True), kind)


def _dictionaries(rows: pa.Table) -> Iterator[list[dict[str, Any]]]:
    for first in range(0, len(rows), ROWS_AT_ONCE):
        some = rows.slice(first, ROWS_AT_ONCE)
        nested = [each.name for each in some.schema if pa.types.is_nested(each.type)]
        found = some.to_pylist(maps_as_pydicts="strict")
        for row in found:
            for name in nested:
                row[name] = None if row[name] is None else json.dumps(row[name], default=str)
        yield found


def _type_of(kind: pa.DataType, is_key: bool) -> sql.types.TypeEngine[Any]:
    types = pa.types
    simple: Mapping[str, sql.types.TypeEngine[Any]] = {
        "bool": sql.Boolean(),
        "float": sql.Float(53),
        "double": sql.Float(53),
        "date32[day]": sql.Date(),
        "binary": sql.LargeBinary(),
    }
    if types.is_integer(kind):
        return sql.BigInteger()
    if types.is_decimal(kind):
        return sql.Numeric(kind.precision, kind.scale)
    if types.is_timestamp(kind):
        return sql.DateTime(timezone=kind.tz is not None)
    if is_key and str(kind) in ("string", "large_string"):
        # Where an index cannot be over text of any length.
        return sql.Text().with_variant(sql.String(255), "mysql", "mariadb")
    return simple.get(str(kind), sql.Text())
