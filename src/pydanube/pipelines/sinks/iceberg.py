"""Iceberg tables by name as sinks."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from typing_extensions import override

from pydanube.errors import InvalidRequest
from pydanube.pipelines.definitions import Scalar, Sink
from pydanube.pipelines.lakes import FileLake, storage_options
from pydanube.pipelines.places import Path
from pydanube.pipelines.sinks.kind import Promise
from pydanube.pipelines.sinks.problems import (
    iceberg_problems,
    needs_key_for_upsert,
    not_by_path,
    not_for_topics,
)
from pydanube.pipelines.sinks.table_kind import TableKind
from pydanube.tables.partitioning import read_partitioning

_CATALOGS_MAX = 32


class IcebergSink(TableKind):
    """A table of an Iceberg catalogue; a property of it carries the batch's number."""

    @override
    def problems(self, sink: Sink) -> Iterator[tuple[Path, str]]:
        yield from not_for_topics(sink)
        yield from iceberg_problems(sink.table, sink.catalog, "a sink")
        yield from _partitioning_problems(sink)
        yield from not_by_path(sink)
        yield from needs_key_for_upsert(sink)

    @override
    def promise(self, sink: Sink, unversioned: Sequence[str]) -> Promise:
        return Promise("exactly once", "rows and the batch's number are one commit of the table")

    @override
    def table(self, sink: Sink) -> FileLake:
        assert sink.table is not None, "it was checked"
        return iceberg_named(sink.catalog, sink.table)

    @override
    def beside(self, sink: Sink, place: str) -> FileLake:
        return iceberg_named(sink.catalog, place)


def iceberg_named(catalog: Mapping[str, Scalar], table: str) -> FileLake:
    """Return a table of a catalogue, which stays open."""
    return _opened(tuple(sorted(storage_options(catalog).items())), table)


@lru_cache(maxsize=_CATALOGS_MAX)
def _opened(catalog: tuple[tuple[str, str], ...], table: str) -> FileLake:
    # Not imported with the module: pyiceberg takes its time.
    from pydanube.pipelines.iceberg_tables import IcebergLake

    return IcebergLake(dict(catalog), table)


def _partitioning_problems(sink: Sink) -> Iterator[tuple[Path, str]]:
    try:
        fields = read_partitioning(",".join(sink.partition_by))
    except InvalidRequest as error:
        yield ("partition_by",), str(error)
        return
    derived = [each.name for each in fields if each.transform != "identity"]
    if derived and sink.mode == "upsert":
        yield (
            ("partition_by",),
            "rows of a table by day or hour cannot be replaced by key; partition by columns, or "
            "use mode: append",
        )
