"""A column of attributes. A message without any has null in a batch, and an empty map for readers.

Spark copies a column of null maps to Python in time that grows with the square of a batch's rows:
it fills the nulls from the first on whenever it looks how large the batch is, after every row.
"""

import pyarrow as pa
import pyarrow.compute as pc

_OFFSET_BYTES = 4


def empty_for_none(column: pa.MapArray) -> pa.MapArray:
    """Return the column with an empty map wherever it had null."""
    if not column.null_count:
        return column
    if column.null_count == len(column):
        offsets = pa.py_buffer(bytes(_OFFSET_BYTES * (len(column) + 1)))
        entries = pa.array([], column.type.field(0).type)
        return pa.Array.from_buffers(column.type, len(column), [None, offsets], children=[entries])
    if pc.any(pc.and_(_has_some(column), pc.is_null(column))).as_py():
        # What lies under a null means nothing, and must not show.
        return pc.coalesce(column, pa.scalar([], column.type))
    return pa.MapArray.from_arrays(column.offsets, column.keys, column.items, column.type)


def none_for_empty(column: pa.MapArray) -> pa.MapArray:
    """Return the column with null wherever it had an empty map."""
    if column.null_count == len(column):
        return column
    given = _has_some(column)
    if column.null_count:
        given = pc.and_(given, pc.is_valid(column))
    if not given.true_count:
        return pa.nulls(len(column), column.type)
    if given.true_count == len(column) - column.null_count:
        return column
    # Arrow takes a mask for offsets of their own only, not for a part of others.
    own = pc.add(column.offsets, 0)
    return pa.MapArray.from_arrays(
        own, column.keys, column.items, column.type, mask=pc.invert(given)
    )


def _has_some(column: pa.MapArray) -> pa.BooleanArray:
    offsets = column.offsets
    return pc.not_equal(offsets[1:], offsets[:-1])
