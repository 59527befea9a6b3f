"""Delta tables as sinks of pipelines: each batch in one commit, known by who wrote it.

The commit of a batch carries an application transaction (pipeline/flow/query, batch) and, for
people and for `--from-sink`, the offsets that the sources had reached.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError
from typing_extensions import override

from pydanube.pipelines.lakes import (
    BATCH_KEY,
    FLOW_KEY,
    OFFSETS_KEY,
    QUERY_KEY,
    BatchId,
    Lake,
    LastBatch,
    WriteMode,
    keyed,
    nullable,
)
from pydanube.tables.lake_types import same_shape

COMMITS_LOOKED_AT_MAX = 10_000


class DeltaLake(Lake):
    """The Delta table at a path or URL."""

    def __init__(self, path: str, storage: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._storage = dict(storage or {}) or None

    @property
    @override
    def name(self) -> str:
        return self._path

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
        table = self._open()
        if table is not None and _has(table, batch):
            return int(table.version())
        rows = nullable(keyed(rows, key, self.name) if mode == "upsert" else rows)
        properties = _properties(batch)
        if mode == "upsert" and table is not None:
            _merge(table, rows, key, properties)
            if not _has(table, batch):
                # A merge that changes nothing makes no commit: the batch is noted by itself.
                write_deltalake(
                    table, rows.slice(0, 0), mode="append", commit_properties=properties
                )
        else:
            write_deltalake(
                self._path if table is None else table,
                rows,
                mode="overwrite" if mode == "complete" else "append",
                schema_mode="overwrite" if mode == "complete" else "merge",
                partition_by=list(partition_by) or None,
                storage_options=self._storage,
                commit_properties=properties,
            )
        written = self._open()
        assert written is not None, "it was written just now"
        return int(written.version())

    @override
    def last_batch(self, flow: str) -> LastBatch | None:
        table = self._open()
        if table is None:
            return None
        for commit in table.history(COMMITS_LOOKED_AT_MAX):
            if commit.get(FLOW_KEY) == flow:
                return LastBatch(
                    query=str(commit[QUERY_KEY]),
                    number=int(commit[BATCH_KEY]),
                    offsets=json.loads(commit.get(OFFSETS_KEY) or "{}"),
                )
        return None

    @override
    def rows(self) -> pa.Table | None:
        table = self._open()
        if table is None:
            return None
        found = pa.table(table.scan())
        return found.cast(pa.schema([(each.name, same_shape(each.type)) for each in found.schema]))

    def _open(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._path, storage_options=self._storage)
        except TableNotFoundError:
            return None


def _properties(batch: BatchId) -> CommitProperties:
    return CommitProperties(
        custom_metadata={
            FLOW_KEY: batch.flow,
            QUERY_KEY: batch.query,
            BATCH_KEY: str(batch.number),
            OFFSETS_KEY: json.dumps(batch.offsets),
        },
        app_transactions=[Transaction(batch.application, batch.number)],
    )


def _has(table: DeltaTable, batch: BatchId) -> bool:
    table.update_incremental()
    reached = table.transaction_version(batch.application)
    return reached is not None and reached >= batch.number


def _merge(
    table: DeltaTable, rows: pa.Table, key: Sequence[str], properties: CommitProperties
) -> None:
    condition = " AND ".join(f"old.`{name}` = new.`{name}`" for name in key)
    (
        table.merge(
            rows,
            condition,
            source_alias="new",
            target_alias="old",
            merge_schema=True,
            commit_properties=properties,
        )
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )
