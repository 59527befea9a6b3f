"""Delta tables as sinks of pipelines: each batch in one commit, known by who wrote it.

The commit of a batch carries an application transaction (pipeline/flow/query, batch) and, for
people and for `--from-sink`, the offsets that the sources had reached. A batch that is there
already is not written again.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError
from msgspec import Struct

from pydanube.pipelines.errors import FlowRefused

FLOW_KEY = "danube.flow"
QUERY_KEY = "danube.query"
BATCH_KEY = "danube.batch"
OFFSETS_KEY = "danube.offsets"

COMMITS_LOOKED_AT_MAX = 10_000


class BatchId(Struct, frozen=True, kw_only=True):
    """Who writes a batch."""

    flow: str
    query: str
    number: int
    offsets: Mapping[str, Mapping[str, int]] = {}
    """Reached by the sources with this batch: offsets by partition, by source."""

    @property
    def application(self) -> str:
        """Return the name of the query for transactions of a table."""
        return f"{self.flow}/{self.query}"


class LastBatch(Struct, frozen=True, kw_only=True):
    """What a table says about the flow that writes it."""

    query: str
    number: int
    offsets: dict[str, dict[str, int]]


def write_batch(
    path: str,
    rows: pa.Table,
    batch: BatchId,
    *,
    mode: Literal["append", "upsert", "complete"] = "append",
    key: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    storage: Mapping[str, str] | None = None,
) -> int:
    """Bring a batch into the table at `path`, unless it is there; return the table's version."""
    table = _open(path, storage)
    if table is not None and _has(table, batch):
        return int(table.version())
    properties = CommitProperties(
        custom_metadata={
            FLOW_KEY: batch.flow,
            QUERY_KEY: batch.query,
            BATCH_KEY: str(batch.number),
            OFFSETS_KEY: json.dumps(batch.offsets),
        },
        app_transactions=[Transaction(batch.application, batch.number)],
    )
    options = dict(storage or {}) or None
    if mode == "upsert" and table is not None:
        _merge(table, rows, key, properties)
        if not _has(table, batch):
            # A merge that changes nothing makes no commit: the batch is noted by itself.
            write_deltalake(table, rows.slice(0, 0), mode="append", commit_properties=properties)
    else:
        write_deltalake(
            path if table is None else table,
            rows,
            mode="overwrite" if mode == "complete" else "append",
            schema_mode="overwrite" if mode == "complete" else "merge",
            partition_by=list(partition_by) or None,
            storage_options=options,
            commit_properties=properties,
        )
    written = _open(path, storage)
    assert written is not None, "it was written just now"
    return int(written.version())


def last_batch(path: str, flow: str, storage: Mapping[str, str] | None = None) -> LastBatch | None:
    """Return the newest batch of a flow in a table; None if the flow never wrote there."""
    table = _open(path, storage)
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


def _has(table: DeltaTable, batch: BatchId) -> bool:
    table.update_incremental()
    reached = table.transaction_version(batch.application)
    return reached is not None and reached >= batch.number


def _merge(
    table: DeltaTable, rows: pa.Table, key: Sequence[str], properties: CommitProperties
) -> None:
    missing = [name for name in key if name not in rows.column_names]
    if missing:
        raise FlowRefused(
            f"the sink's key names {', '.join(missing)}; the columns are "
            f"{', '.join(rows.column_names)}"
        )
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


def _open(path: str, storage: Mapping[str, str] | None) -> DeltaTable | None:
    try:
        return DeltaTable(path, storage_options=dict(storage or {}) or None)
    except TableNotFoundError:
        return None
