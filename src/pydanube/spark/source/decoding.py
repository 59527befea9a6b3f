"""Payloads as typed values: whole columns at a time, by the schemas they were written with."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from pydanube.errors import InvalidRequest, NotFound
from pydanube.model.schemas import VERSION_ASSUMED
from pydanube.schemas.format import Decoded, Schema
from pydanube.spark.registry import ReaderSchema

NEEDED = ("payload", "schema_id", "schema_version")
"""The columns that decoding looks at."""

FindWriter = Callable[[int, int], Schema]


class PayloadDecoder:
    """Turns payloads into values of one schema; those of other versions are resolved by name.

    A payload that cannot be decoded is null with its reason, or fails the read if `strict`.
    """

    def __init__(self, reader: ReaderSchema, find_writer: FindWriter, *, strict: bool) -> None:
        self._reader = reader
        self._schema = reader.schema()
        self._find_writer = find_writer
        self._strict = strict

    def decode(self, rows: pa.RecordBatch, first: int | None) -> tuple[pa.Array, pa.Array]:
        """Return value and decode_error of rows with the columns NEEDED.

        `first` is the offset of the first row, if they are offsets in a row; errors name it.
        """
        ids, versions = rows.column("schema_id"), rows.column("schema_version")
        pairs = pa.table({"id": ids, "version": versions}).group_by(["id", "version"])
        written = pairs.aggregate([]).to_pylist()
        if len(written) == 1:
            return self._decode_alike(rows.column("payload"), written[0], first)
        parts, errors, places = [], [], []
        for pair in written:
            chosen = pc.and_(_equals(ids, pair["id"]), _equals(versions, pair["version"]))
            own = rows.filter(chosen)
            value, error = self._decode_alike(own.column("payload"), pair, first)
            parts.append(value)
            errors.append(error)
            places.append(pc.indices_nonzero(chosen))
        back = pc.array_sort_indices(pa.concat_arrays(places))
        return pa.concat_arrays(parts).take(back), pa.concat_arrays(errors).take(back)

    def _decode_alike(
        self, payloads: pa.Array, written: dict[str, int | None], first: int | None
    ) -> tuple[pa.Array, pa.Array]:
        """Decode payloads that were all written by one version."""
        try:
            decoded = self._schema.decode(payloads, self._writer(written))
        except (InvalidRequest, NotFound) as error:
            decoded = self._nothing(len(payloads), str(error))
            reasons = pa.repeat(pa.scalar(str(error), pa.utf8()), len(payloads))
        else:
            by_row = {failure.row: failure.reason for failure in decoded.failures}
            reasons = pa.array([by_row.get(row) for row in range(len(payloads))], pa.utf8())
            if not by_row:
                reasons = pa.nulls(len(payloads), pa.utf8())
        if self._strict and reasons.null_count < len(reasons):
            row = pc.index(pc.is_valid(reasons), True).as_py()
            place = "" if first is None else f" among the rows from offset {first} on"
            raise InvalidRequest(
                f"a payload{place} cannot be decoded by version {self._reader.version} of "
                f"{self._reader.subject}: {reasons[row].as_py()}. Let such rows pass with option "
                f"{'on_error' if first is None else 'onDecodeError'}=null"
            )
        return decoded.values, reasons

    def _writer(self, written: dict[str, int | None]) -> Schema | None:
        schema_id, version = written["id"], written["version"]
        if schema_id is None:
            return None
        if schema_id != self._reader.schema_id:
            raise InvalidRequest(
                f"it was written by schema {schema_id}, not by one of {self._reader.subject}"
            )
        version = VERSION_ASSUMED if version is None else version
        if version == self._reader.version:
            return None
        return self._find_writer(schema_id, version)

    def _nothing(self, count: int, reason: str) -> Decoded:
        return Decoded(pa.nulls(count, self._schema.arrow_type()), [])


def fit(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return values as the struct Spark was told of: fields by name, missing ones null."""
    if values.type == wanted:
        return values
    if not (pa.types.is_struct(values.type) and pa.types.is_struct(wanted)):
        return values.cast(wanted)
    names = {field.name for field in values.type}
    children = [
        fit(pc.struct_field(values, field.name), field.type)
        if field.name in names
        else pa.nulls(len(values), field.type)
        for field in wanted
    ]
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=values.is_null())


def _equals(column: pa.Array, value: int | None) -> pa.Array:
    if value is None:
        return column.is_null()
    return pc.fill_null(pc.equal(column, value), False)
