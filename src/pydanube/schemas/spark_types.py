"""Arrow types in the words of Spark's DDL."""

import pyarrow as pa
from pyarrow import types


def spark_ddl(arrow_type: pa.DataType) -> str:
    """Return `arrow_type` as a Spark type, nested ones included.

    Covers the types that schemas decode to; any other is a bug of the format.
    """
    if types.is_struct(arrow_type):
        fields = ", ".join(
            f"{_quoted(field.name)}: {spark_ddl(field.type)}" for field in arrow_type
        )
        return f"STRUCT<{fields}>"
    if types.is_list(arrow_type):
        return f"ARRAY<{spark_ddl(arrow_type.value_type)}>"
    if types.is_map(arrow_type):
        return f"MAP<{spark_ddl(arrow_type.key_type)}, {spark_ddl(arrow_type.item_type)}>"
    if types.is_decimal(arrow_type):
        return f"DECIMAL({arrow_type.precision}, {arrow_type.scale})"
    if types.is_timestamp(arrow_type):
        return "TIMESTAMP" if arrow_type.tz else "TIMESTAMP_NTZ"
    return _SIMPLE[str(arrow_type)]


_SIMPLE = {
    "bool": "BOOLEAN",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "date32[day]": "DATE",
}


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
