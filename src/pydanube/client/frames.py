"""Messages as tables and frames. Each library is loaded by those who ask for it."""

from importlib import import_module
from typing import Any

import pyarrow as pa
from msgspec import Struct

from pydanube.model.batch import SCHEMA, payloads_of

TABLE_SCHEMA = pa.schema([("topic", pa.utf8()), ("offset", pa.int64()), *SCHEMA])


class Rows(Struct, frozen=True):
    """Messages that lie one after the other in a topic."""

    topic: str
    """The topic, or the partition."""
    offset: int
    """Of the first row; the others follow without a gap."""
    rows: pa.RecordBatch

    def payloads(self) -> list[bytes]:
        """Return the payload of every row; a few times faster than Arrow's own `to_pylist`."""
        return payloads_of(self.rows)

    def to_arrow(self) -> pa.Table:
        """Return a table: topic, offset, and the columns of a message."""
        return table_of([self])

    # Neither library has to be installed, so their types cannot be named here.

    def to_pandas(self) -> Any:  # noqa: ANN401
        """Return the table as a pandas DataFrame."""
        return pandas_of(self.to_arrow())

    def to_polars(self) -> Any:  # noqa: ANN401
        """Return the table as a polars DataFrame."""
        return polars_of(self.to_arrow())


def table_of(parts: list[Rows]) -> pa.Table:
    """Put batches under each other."""
    return pa.Table.from_batches([_with_places(part) for part in parts], TABLE_SCHEMA)


def _with_places(part: Rows) -> pa.RecordBatch:
    count = part.rows.num_rows
    offsets = pa.array(range(part.offset, part.offset + count), pa.int64())
    columns = [pa.repeat(part.topic, count), offsets, *part.rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=TABLE_SCHEMA)


def pandas_of(table: pa.Table) -> Any:  # noqa: ANN401
    """Return a table as a pandas DataFrame."""
    load("pandas")  # Arrow's own complaint would not say what to do.
    return table.to_pandas()


def polars_of(table: pa.Table) -> Any:  # noqa: ANN401
    """Return a table as a polars DataFrame."""
    return load("polars").from_arrow(table)


def load(package: str) -> Any:  # noqa: ANN401
    """Return a library that users install themselves, or say that they have to."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"to_{package} needs the package {package}, which is not installed: "
            f"pip install {package}, or use to_arrow",
            name=package,
        ) from None
