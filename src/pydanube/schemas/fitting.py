"""Brings a column that was built in the types of its source to the types it is to have."""

import pyarrow as pa
from pyarrow import types


def fit(column: pa.Array, wanted: pa.DataType, *, safe: bool = True) -> pa.Array:
    """Return the column cast to a type of the same shape.

    Arrow's own cast also looks at what null structs hide, and stumbles over it.
    """
    if column.type.equals(wanted):
        return column
    if types.is_struct(wanted):
        parts = [
            fit(part, field.type, safe=safe)
            for part, field in zip(column.flatten(), wanted, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=column.is_null())
    if types.is_list(wanted):
        values = fit(column.values, wanted.value_type, safe=safe)
        return pa.ListArray.from_arrays(column.offsets, values, type=wanted, mask=column.is_null())
    if types.is_map(wanted):
        items = fit(column.items, wanted.item_type, safe=safe)
        return pa.MapArray.from_arrays(
            column.offsets, column.keys, items, type=wanted, mask=column.is_null()
        )
    return column.cast(wanted, safe=safe)
