"""Which table a sink, dead letters or a replay write to."""

from collections.abc import Mapping
from functools import lru_cache

from pydanube.pipelines.definitions import DeadLetter, Scalar, Sink
from pydanube.pipelines.delta_tables import DeltaLake
from pydanube.pipelines.lakes import FileLake, Lake, storage_options

_CATALOGS_MAX = 32


def lake_of(sink: Sink) -> Lake | None:
    """Return the table that a sink writes to; None if it is none with commits."""
    match sink.format:
        case "delta":
            assert sink.path is not None, "it was checked"
            return _delta(sink.path, sink.options)
        case "iceberg":
            assert sink.table is not None, "it was checked"
            return _iceberg(sink.catalog, sink.table)
        case "sql":
            assert sink.table is not None, "it was checked"
            assert sink.url is not None, "it was checked"
            return _sql(sink.url, sink.table)
        case _:
            return None


def dead_lake_of(target: DeadLetter) -> FileLake | None:
    """Return the table of dead letters; None where they go to a topic."""
    if target.path is not None:
        return _delta(target.path, {})
    return _iceberg(target.catalog, target.table) if target.table is not None else None


def beside(sink: Sink, place: str) -> Lake:
    """Return another table of the sink's kind: at a path, or by name in the same catalogue."""
    if sink.format == "iceberg":
        return _iceberg(sink.catalog, place)
    if sink.format == "sql":
        assert sink.url is not None, "it was checked"
        return _sql(sink.url, place)
    return _delta(place, sink.options if sink.format == "delta" else {})


def _delta(path: str, options: Mapping[str, Scalar]) -> FileLake:
    return DeltaLake(path, storage_options(options))


def _iceberg(catalog: Mapping[str, Scalar], table: str) -> FileLake:
    return _opened(tuple(sorted(storage_options(catalog).items())), table)


@lru_cache(maxsize=_CATALOGS_MAX)
def _opened(catalog: tuple[tuple[str, str], ...], table: str) -> FileLake:
    # Not imported with the module: pyiceberg takes its time.
    from pydanube.pipelines.iceberg_tables import IcebergLake

    return IcebergLake(dict(catalog), table)


@lru_cache(maxsize=_CATALOGS_MAX)
def _sql(url: str, table: str) -> Lake:
    from pydanube.pipelines.sql_tables import SqlTable

    return SqlTable(url, table)
