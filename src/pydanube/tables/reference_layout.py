"""The layout `danube-iceberg`: tables with the columns of the reference's exporter.

With a schema: `offset`, `publish_time` (milliseconds, a number), `producer_name`, `routing_key`,
then the fields of payloads. Without: the same four, `schema_id`, `schema_version`, `payload`,
`attributes_json`. There is no partition in it, so only plain topics fit. The rest of the code sees
the layout `danube`; here one becomes the other.
"""

from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs
from typing_extensions import override

from pydanube.tables.columns import ENVELOPE, PAYLOAD
from pydanube.tables.lake import (
    Commit,
    DataFile,
    Joined,
    LakeSnapshot,
    LakeTable,
    Run,
    StoredFile,
    TableFacts,
)
from pydanube.tables.lake_types import same_shape
from pydanube.tables.state import Position

_ATTRIBUTES_JSON = "attributes_json"
_ALWAYS = ("offset", "publish_time", "producer_name", "routing_key")
_WITHOUT_SCHEMA = ("schema_id", "schema_version")


class ReferenceLayoutTable(LakeTable):
    """A table of one plain topic, with the reference's columns."""

    def __init__(self, inner: LakeTable, topic: str) -> None:
        self._inner = inner
        self._topic = topic

    @property
    @override
    def name(self) -> str:
        return self._inner.name

    @property
    def inner(self) -> LakeTable:
        """The table as it is stored."""
        return self._inner

    @override
    def load(self) -> "ReferenceLayoutSnapshot | None":
        found = self._inner.load()
        return None if found is None else ReferenceLayoutSnapshot(found, self._topic)

    @override
    def check(self) -> None:
        self._inner.check()

    @override
    def create(self, columns: pa.Schema) -> None:
        self._inner.create(_stored_schema(columns, raw=PAYLOAD in columns.names))

    @override
    def blank(self, columns: pa.Schema) -> "ReferenceLayoutSnapshot | None":
        found = self._inner.blank(_stored_schema(columns, raw=PAYLOAD in columns.names))
        return None if found is None else ReferenceLayoutSnapshot(found, self._topic)

    @override
    def holds(self, commit_id: str) -> bool:
        return self._inner.holds(commit_id)


class ReferenceLayoutSnapshot(LakeSnapshot):
    """A snapshot of such a table."""

    def __init__(self, inner: LakeSnapshot, topic: str) -> None:
        self._inner = inner
        self._topic = topic
        self._stored = {each.name: each.type for each in inner.columns}

    @property
    @override
    def positions(self) -> Mapping[str, Position]:
        return self._inner.positions

    @property
    @override
    def columns(self) -> pa.Schema:
        others = [
            (name, same_shape(kind))
            for name, kind in self._stored.items()
            if name not in ENVELOPE.names and name != _ATTRIBUTES_JSON
        ]
        return pa.schema([*ENVELOPE, *others])

    @override
    def write(self, name: str, rows: pa.Table) -> list[DataFile]:
        return self._inner.write(name, self._to_stored(rows))

    @override
    def commit(self, commit: Commit) -> bool:
        upsert = commit.upsert
        if upsert is not None:
            upsert = structs.replace(upsert, rows=self._to_stored(upsert.rows))
        return self._inner.commit(structs.replace(commit, upsert=upsert))

    @override
    def delete(self, files: Sequence[DataFile]) -> None:
        self._inner.delete(files)

    @override
    def remove(self, runs: Sequence[Run]) -> bool:
        raise AssertionError("rows are taken from dead letters alone, which have every column")

    @override
    def scan(self, columns: Sequence[str], bounds: Mapping[str, tuple[int, int]]) -> pa.Table:
        """Return the columns that the layout keeps, and those that are the same in every row."""
        low, high = bounds.get("partition", (0, 1))
        inside = {name: each for name, each in bounds.items() if name != "partition"}
        wanted = {"attributes": _ATTRIBUTES_JSON, "topic": "offset", "partition": "offset"}
        names = {wanted.get(name, name) for name in columns}
        stored = self._inner.scan([name for name in self._stored if name in names], inside)
        if not low <= 0 < high:
            stored = stored.slice(0, 0)
        return self._from_stored(stored, columns)

    @override
    def files(self) -> list[StoredFile]:
        return self._inner.files()

    @override
    def join(self, name: str, paths: Sequence[str]) -> DataFile:
        return self._inner.join(name, paths)

    @override
    def replace(self, joined: Sequence[Joined], summary: Mapping[str, str]) -> bool:
        return self._inner.replace(joined, summary)

    @override
    def plain_files(self) -> list[str] | None:
        return None

    @override
    def facts(self) -> TableFacts:
        return self._inner.facts()

    def _to_stored(self, rows: pa.Table) -> pa.Table:
        schema = _stored_schema(rows.schema, raw=_ATTRIBUTES_JSON in self._stored)
        columns = []
        for field in schema:
            match field.name:
                case "publish_time":
                    times = rows.column("publish_time").cast(pa.timestamp("ms", "UTC"))
                    columns.append(times.cast(pa.int64()))
                case "attributes_json":
                    columns.append(_to_json(rows.column("attributes")))
                case name:
                    columns.append(rows.column(name))
        return pa.Table.from_arrays(columns, schema=schema)

    def _from_stored(self, stored: pa.Table, wanted: Sequence[str]) -> pa.Table:
        found: dict[str, pa.ChunkedArray | pa.Array] = {}
        for name in wanted:
            if name == "topic":
                found[name] = pa.repeat(pa.scalar(self._topic), len(stored))
            elif name == "partition":
                found[name] = pa.repeat(pa.scalar(0, pa.int32()), len(stored))
            elif name == "publish_time":
                times = stored.column(name).cast(pa.timestamp("ms", "UTC"))
                found[name] = times.cast(ENVELOPE.field(name).type)
            elif name == "attributes" and _ATTRIBUTES_JSON in stored.column_names:
                found[name] = _from_json(stored.column(_ATTRIBUTES_JSON))
            elif name in stored.column_names:
                column = stored.column(name)
                found[name] = column.cast(same_shape(column.type))
        return pa.table(found)


def _stored_schema(columns: pa.Schema, *, raw: bool) -> pa.Schema:
    """Return what the layout keeps of columns; `raw`: of payloads without a schema."""
    fields = []
    for each in columns:
        if each.name == "publish_time":
            fields.append(pa.field(each.name, pa.int64()))
        elif (
            each.name not in ENVELOPE.names
            or each.name in _ALWAYS
            or (raw and each.name in _WITHOUT_SCHEMA)
        ):
            fields.append(each)
    if raw:
        fields.append(pa.field(_ATTRIBUTES_JSON, pa.string()))
    return pa.schema(fields)


def _to_json(attributes: pa.ChunkedArray) -> pa.Array:
    texts = [
        None if each is None else msgspec.json.encode(dict(each)).decode()
        for each in attributes.to_pylist()
    ]
    return pa.array(texts, pa.string())


def _from_json(texts: pa.ChunkedArray) -> pa.Array:
    kind = ENVELOPE.field("attributes").type
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    found = [
        None if each is None else list(msgspec.json.decode(each, type=dict[str, str]).items())
        for each in pc.cast(texts, pa.string()).to_pylist()
    ]
    return pa.array(found, kind)
