"""Refuses Avro schemas whose values never end, or cost more work than they have bytes.

Nulls and records of nulls take no bytes. A record of two records of two records and so on is a
small definition with a value of no bytes and 2**60 parts.
"""

from collections.abc import Mapping, Sequence

from pydanube.schemas.avro.types import Array, AvroType, Fixed, Map, Primitive, Record, Union
from pydanube.schemas.bounds import exceeded
from pydanube.schemas.errors import InvalidSchema
from pydanube.schemas.limits import SchemaLimits


def check_values_are_finite(records: Sequence[Record]) -> None:
    """Raise InvalidSchema for a record of which no value can be written."""
    ending: set[int] = set()

    def ends(avro_type: AvroType) -> bool:
        match avro_type:
            case Record():
                return id(avro_type) in ending
            case Union(branches=branches):
                return any(ends(branch) for branch in branches)
            case _:
                return True

    open_records = list(records)
    while open_records:
        still_open = [
            record for record in open_records if not all(ends(each.type) for each in record.fields)
        ]
        if len(still_open) == len(open_records):
            raise InvalidSchema(
                f"record {still_open[0].name} contains itself without an end; let a field be a "
                "union with null, an array or a map"
            )
        kept = {id(record) for record in still_open}
        ending.update(id(record) for record in open_records if id(record) not in kept)
        open_records = still_open


def check_work_per_byte(
    records: Sequence[Record], arrays: Mapping[str, Array], limits: SchemaLimits
) -> None:
    """Raise if a value could have many more parts than bytes."""
    costs: dict[int, tuple[int, int]] = {}

    def cost(avro_type: AvroType) -> tuple[int, int]:
        """Return the parts and the bytes that every value of the type has at least."""
        match avro_type:
            case Primitive(kind=kind):
                return 1, 0 if kind == "null" else 1
            case Fixed(size=size):
                return 1, size
            case Record():
                return record_cost(avro_type)
            case _:
                return 1, 1

    def record_cost(record: Record) -> tuple[int, int]:
        if id(record) not in costs:
            parts = [cost(each.type) for each in record.fields]
            visits = 1 + sum(part[0] for part in parts)
            size = sum(part[1] for part in parts)
            if visits > limits.nodes_max:
                raise exceeded(f"record {record.name} has {visits} parts", "nodes_max", limits)
            if visits > limits.visits_per_byte_max * max(1, size):
                raise exceeded(
                    f"record {record.name} has {visits} parts in {size} bytes",
                    "visits_per_byte_max",
                    limits,
                )
            costs[id(record)] = visits, size
        return costs[id(record)]

    for record in records:
        record_cost(record)
    for path, array in arrays.items():
        if cost(array.items)[1] == 0:
            # A payload of a few bytes could claim more of them than memory can hold.
            raise InvalidSchema(
                f"{path or 'the schema'}: items of an array must take at least one byte"
            )


def check_columns(root: AvroType, limits: SchemaLimits) -> None:
    """Raise if values of the type, spread out as columns, would have too many of them."""
    left = limits.nodes_max

    def count(avro_type: AvroType, within: tuple[Record, ...]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise exceeded("the schema has too many fields within fields", "nodes_max", limits)
        match avro_type:
            case Record() if avro_type not in within:
                for each in avro_type.fields:
                    count(each.type, (*within, avro_type))
            case Union(branches=branches):
                for branch in branches:
                    count(branch, within)
            case Array(items=items):
                count(items, within)
            case Map(values=values):
                count(values, within)
            case _:
                pass

    count(root, ())
