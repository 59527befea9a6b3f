"""Types of columns: what tables can hold, what fits together, how values are brought to it. Pure.

Tables know one integer, one floating-point number and one kind of text, so that versions of a
schema that differ in width alone share a column.
"""

import pyarrow as pa
from pyarrow import types

from pydanube.schemas.fitting import fit

UTC_MICROSECONDS = pa.timestamp("us", "UTC")


def lake_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column of decoded values gets in a table."""
    if types.is_uint64(kind):
        return pa.decimal128(20, 0)
    if types.is_integer(kind):
        return pa.int64()
    if types.is_floating(kind):
        return pa.float64()
    if types.is_timestamp(kind):
        return UTC_MICROSECONDS
    if types.is_date(kind):
        return pa.date32()
    if types.is_boolean(kind) or types.is_decimal128(kind):
        return kind
    if _is_binary(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([pa.field(each.name, lake_type(each.type)) for each in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(lake_type(kind.value_type))
    if types.is_map(kind):
        return pa.map_(lake_type(kind.key_type), lake_type(kind.item_type))
    return pa.string()


def same_shape(kind: pa.DataType) -> pa.DataType:
    """Return a table's own type without the variants that libraries read it as."""
    if types.is_struct(kind):
        return pa.struct([pa.field(each.name, same_shape(each.type)) for each in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(same_shape(kind.value_type))
    if types.is_map(kind):
        return pa.map_(same_shape(kind.key_type), same_shape(kind.item_type))
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return kind


def merged(there: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """Return the type that holds values of both; None if a column cannot hold both."""
    if there.equals(new):
        return there
    if types.is_struct(there) and types.is_struct(new):
        return _merged_struct(there, new)
    if types.is_list(there) and types.is_list(new):
        inner = merged(there.value_type, new.value_type)
        return None if inner is None else pa.list_(inner)
    if types.is_map(there) and types.is_map(new):
        key = merged(there.key_type, new.key_type)
        item = merged(there.item_type, new.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return None


def conform(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column as `wanted`, which `merged` made of its type: new fields are null."""
    if column.type.equals(wanted):
        return column
    if types.is_struct(wanted):
        parts = dict(zip((each.name for each in column.type), column.flatten(), strict=True))
        arrays = [
            conform(parts[field.name], field.type)
            if field.name in parts
            else pa.nulls(len(column), field.type)
            for field in wanted
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(wanted), mask=column.is_null())
    if types.is_list(wanted):
        values = conform(column.values, wanted.value_type)
        return pa.ListArray.from_arrays(column.offsets, values, type=wanted, mask=column.is_null())
    if types.is_map(wanted):
        items = conform(column.items, wanted.item_type)
        return pa.MapArray.from_arrays(
            column.offsets, column.keys, items, type=wanted, mask=column.is_null()
        )
    return column.cast(wanted)


def to_lake(column: pa.Array) -> pa.Array:
    """Return decoded values in the types of tables."""
    return fit(column, lake_type(column.type))


def _merged_struct(there: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    fields = {each.name: each.type for each in there}
    for each in new:
        before = fields.get(each.name)
        kind = each.type if before is None else merged(before, each.type)
        if kind is None:
            return None
        fields[each.name] = kind
    return pa.struct(list(fields.items()))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )
