"""Delta tables by path as sinks."""

from collections.abc import Iterator, Mapping, Sequence

from typing_extensions import override

from pydanube.pipelines.definitions import Scalar, Sink
from pydanube.pipelines.lakes import FileLake, storage_options
from pydanube.pipelines.places import Path
from pydanube.pipelines.sinks.kind import Promise
from pydanube.pipelines.sinks.problems import (
    needs_key_for_upsert,
    needs_path,
    not_by_name,
    not_for_topics,
)
from pydanube.pipelines.sinks.table_kind import TableKind


class DeltaSink(TableKind):
    """A Delta table; its commits carry the batch's number."""

    @override
    def problems(self, sink: Sink) -> Iterator[tuple[Path, str]]:
        yield from not_for_topics(sink)
        yield from needs_path(sink)
        yield from not_by_name(sink)
        yield from needs_key_for_upsert(sink)

    @override
    def promise(self, sink: Sink, unversioned: Sequence[str]) -> Promise:
        return Promise("exactly once", "rows and the batch's number are one commit of the table")

    @override
    def table(self, sink: Sink) -> FileLake:
        assert sink.path is not None, "it was checked"
        return delta_at(sink.path, sink.options)

    @override
    def beside(self, sink: Sink, place: str) -> FileLake:
        return delta_at(place, sink.options)


def delta_at(path: str, options: Mapping[str, Scalar]) -> FileLake:
    """Return the Delta table at a path or URL."""
    # Not imported with the module: deltalake takes its time.
    from pydanube.pipelines.delta_tables import DeltaLake

    return DeltaLake(path, storage_options(options))
