"""A number that equal rows share and others do not, so that a changed repeat is noticed. Pure."""

import pyarrow as pa
import pyarrow.compute as pc
import xxhash


def digest_of(rows: pa.RecordBatch) -> int:
    """Return 64 bits of the rows' values, however their buffers happen to lie in memory."""
    state = xxhash.xxh3_64()
    for field, column in zip(rows.schema, rows.columns, strict=True):
        state.update(field.name.encode())
        _add(state, column)
    return state.intdigest()


def _add(state: "xxhash.xxh3_64", column: pa.Array) -> None:
    if pa.types.is_map(column.type):
        offsets = column.offsets
        _add(state, pc.subtract(offsets[1:], offsets[:-1]))
        state.update(_validity(column))
        for part in entries_of(column):
            _add(state, part)
    elif pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        _add(state, pc.binary_length(column))
        # Nulls are told by their lengths; what lies below them is left out.
        state.update(values_in_a_row(column.drop_null() if column.null_count else column))
    else:
        if column.null_count:
            state.update(_validity(column))
            column = column.drop_null()
        plain = pa.concat_arrays([column]) if column.offset else column
        width = plain.type.bit_width // 8
        buffer = plain.buffers()[1]
        if buffer is not None and len(plain):
            state.update(
                memoryview(buffer)[plain.offset * width : (plain.offset + len(plain)) * width]
            )


def _validity(column: pa.Array) -> bytes:
    """Return a byte for each value: 1, or 0 for a null."""
    if not column.null_count:
        return b"\x01" * len(column)
    if column.null_count == len(column):
        return bytes(len(column))
    flags: bytes = column.is_valid().cast(pa.uint8()).buffers()[1].to_pybytes()
    return flags[: len(column)]


def entries_of(column: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """Return the keys and the values of all maps, one map's behind the other's."""
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return column.keys.slice(first, last - first), column.items.slice(first, last - first)


def values_in_a_row(column: pa.Array) -> memoryview:
    """Return the bytes of texts or binaries, one behind the other, with what lies below nulls."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return memoryview(b"")
    places = memoryview(offsets).cast("i")
    first, last = places[column.offset], places[column.offset + len(column)]
    return memoryview(data)[first:last]
