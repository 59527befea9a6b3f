"""Walks over Avro's bytes without building values: strict, bounded, and safe for hostile bytes.

The decoder that builds values accepts negative indices and integers that are too large, and
overflows the stack on values that nest deep. So payloads are walked first, always.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from pydanube.schemas.avro.types import (
    Array,
    AvroType,
    Enumeration,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
)

Walk: TypeAlias = Callable[[bytes, int, int], int]
"""Takes bytes, the position of a value and its depth; returns the position behind it."""

_LONG_BYTES_MAX = 10
_INT_BYTES_MAX = 5
_INT_LAST_BYTE_MAX = 0x0F


class Malformed(ValueError):
    """The bytes are no value of the type; the message says why."""


def compile_walk(avro_type: AvroType, depth_max: int) -> Walk:
    """Return the walk over values of a type. It raises Malformed, or IndexError at an early end."""
    return _Compiler(depth_max).compile(avro_type)


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return the long that starts at a position, and the position behind it."""
    raw = shift = 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= 7 * _LONG_BYTES_MAX:
            raise Malformed(f"the integer at byte {at - _LONG_BYTES_MAX} has more than 64 bits")
    if raw >> 64:
        raise Malformed(f"the integer before byte {at} has more than 64 bits")
    return (raw >> 1) ^ -(raw & 1), at


class _Compiler:
    def __init__(self, depth_max: int) -> None:
        self._depth_max = depth_max
        self._records: dict[int, list[Walk]] = {}

    def compile(self, avro_type: AvroType) -> Walk:
        match avro_type:
            case Primitive(kind=kind):
                return _PRIMITIVES[kind]
            case Fixed(size=size):
                return _fixed(size)
            case Enumeration(symbols=symbols):
                return _enumeration(len(symbols))
            case Array(items=items):
                return _blocks(self.compile(items))
            case Map(values=values):
                return _blocks(_entry(self.compile(values)))
            case Union(branches=branches):
                return _union([self.compile(branch) for branch in branches])
            case Record():
                return self._record(avro_type)

    def _record(self, record: Record) -> Walk:
        known = self._records.get(id(record))
        walks: list[Walk] = [] if known is None else known
        walk = (
            _recursive_record(walks, self._depth_max, record.name)
            if record.recursive
            else _record(walks)
        )
        if known is None:
            self._records[id(record)] = walks
            walks.extend(self.compile(each.type) for each in record.fields)
        return walk


def _null(data: bytes, at: int, depth: int) -> int:
    return at


def _boolean(data: bytes, at: int, depth: int) -> int:
    if data[at] > 1:
        raise Malformed(f"the boolean at byte {at} is {data[at]}")
    return at + 1


def _int(data: bytes, at: int, depth: int) -> int:
    end = at
    while data[end] > 0x7F:
        end += 1
    length = end - at + 1
    if length >= _INT_BYTES_MAX and (length > _INT_BYTES_MAX or data[end] > _INT_LAST_BYTE_MAX):
        raise Malformed(f"the int at byte {at} has more than 32 bits")
    return end + 1


def _long(data: bytes, at: int, depth: int) -> int:
    end = at
    while data[end] > 0x7F:
        end += 1
    length = end - at + 1
    if length >= _LONG_BYTES_MAX and (length > _LONG_BYTES_MAX or data[end] > 1):
        raise Malformed(f"the long at byte {at} has more than 64 bits")
    return end + 1


def _bytes(data: bytes, at: int, depth: int) -> int:
    length = data[at]
    if length > 0x7F:
        size, start = read_long(data, at)
    elif length & 1:
        raise Malformed(f"the length at byte {at} is negative")
    else:
        size, start = length >> 1, at + 1
    if size < 0:
        raise Malformed(f"the length at byte {at} is negative")
    end = start + size
    if end > len(data):
        raise Malformed(f"{size} bytes are announced at byte {at}, {len(data) - start} are left")
    return end


def _string(data: bytes, at: int, depth: int) -> int:
    length = data[at]
    if length > 0x7F:
        size, start = read_long(data, at)
    else:
        size, start = length >> 1, at + 1
        if length & 1:
            size = -1
    end = start + size
    if size < 0 or end > len(data):
        raise Malformed(f"{size} bytes are announced at byte {at}, {len(data) - start} are left")
    try:
        str(data[start:end], "utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"the string at byte {at} is not UTF-8") from error
    return end


_PRIMITIVES: dict[str, Walk] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "bytes": _bytes,
    "string": _string,
}


def _fixed(size: int) -> Walk:
    def walk(data: bytes, at: int, depth: int) -> int:
        end = at + size
        if end > len(data):
            raise Malformed(f"{size} bytes are due at byte {at}, {len(data) - at} are left")
        return end

    return walk


_PRIMITIVES["float"] = _fixed(4)
_PRIMITIVES["double"] = _fixed(8)


def _enumeration(count: int) -> Walk:
    def walk(data: bytes, at: int, depth: int) -> int:
        index, end = read_long(data, at)
        if not 0 <= index < count:
            raise Malformed(f"the symbol at byte {at} is number {index} of {count}")
        return end

    return walk


def _union(walks: Sequence[Walk]) -> Walk:
    # Branches by the byte that announces them; unions of 64 branches and more are rare.
    by_byte = {index << 1: walk for index, walk in enumerate(walks[:64])}

    def walk(data: bytes, at: int, depth: int) -> int:
        branch = by_byte.get(data[at])
        if branch is not None:
            return branch(data, at + 1, depth)
        index, end = read_long(data, at)
        if not 0 <= index < len(walks):
            raise Malformed(f"the branch at byte {at} is number {index} of {len(walks)}")
        return walks[index](data, end, depth)

    return walk


def _record(walks: list[Walk]) -> Walk:
    def walk(data: bytes, at: int, depth: int) -> int:
        for each in walks:
            at = each(data, at, depth)
        return at

    return walk


def _recursive_record(walks: list[Walk], depth_max: int, name: str) -> Walk:
    def walk(data: bytes, at: int, depth: int) -> int:
        if depth >= depth_max:
            raise Malformed(f"records {name} nest deeper than {depth_max} levels")
        for each in walks:
            at = each(data, at, depth + 1)
        return at

    return walk


def _entry(value: Walk) -> Walk:
    def walk(data: bytes, at: int, depth: int) -> int:
        return value(data, _string(data, at, depth), depth)

    return walk


def _blocks(item: Walk) -> Walk:
    """Return the walk over counted blocks; each item takes a byte, so their number is bounded."""

    def walk(data: bytes, at: int, depth: int) -> int:
        while True:
            count, at = read_long(data, at)
            if count == 0:
                return at
            end = None
            if count < 0:
                count = -count
                size, at = read_long(data, at)
                end = at + size
            if count > len(data) - at:
                raise Malformed(f"{count} items are announced before byte {at}, too many")
            for _ in range(count):
                at = item(data, at, depth)
            if end is not None and at != end:
                raise Malformed(f"the block that ends at byte {at} announced another size")

    return walk
