"""Spark imports every package named `pyspark_*` and registers its `DefaultSource`.

It does so without a guard: an error here would break every Python data source of the machine. So
this module holds that class alone, and whatever it needs is imported when it is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource
    from typing_extensions import override
else:

    def override(method):  # noqa: ANN001, ANN201, D103
        return method

    try:
        from pyspark.sql.datasource import DataSource
    except Exception:  # noqa: BLE001  Whatever is wrong there is not to be reported from here.
        DataSource = object


class DefaultSource(DataSource):
    """`format("danube")`: topics as frames, in batches and streams, to read and to write."""

    @classmethod
    @override
    def name(cls) -> str:
        """Return what to give to `format`."""
        return "danube"

    @override
    def schema(self) -> Any:  # noqa: ANN401  Types would have to be imported.
        """Return the columns of a read."""
        return _room().schema_of(self.options)

    @override
    def reader(self, schema: Any) -> Any:  # noqa: ANN401
        """Return what reads a range of topics."""
        return _room().batch_reader(self.options, schema)

    @override
    def streamReader(self, schema: Any) -> Any:  # noqa: ANN401
        """Return what follows topics."""
        return _room().stream_reader(self.options, schema)

    @override
    def writer(self, schema: Any, overwrite: bool) -> Any:  # noqa: ANN401
        """Return what appends a frame to topics."""
        return _room().batch_writer(self.options, schema, overwrite=overwrite)

    @override
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: ANN401
        """Return what appends the batches of a stream to topics."""
        return _room().stream_writer(self.options, schema, overwrite=overwrite)


def _room() -> Any:  # noqa: ANN401
    from pydanube.spark import data_source

    return data_source
