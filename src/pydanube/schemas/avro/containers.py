"""Avro object container files: a header with the writer's schema, then blocks of datums."""

import zlib
from collections.abc import Iterator

from msgspec import Struct

from pydanube.schemas.avro.types import Map, Primitive
from pydanube.schemas.avro.walking import Malformed, compile_walk, read_long

MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_META_ENTRIES_MAX = 1_000
_walk_meta = compile_walk(Map(Primitive("bytes")), 1)


class Container(Struct, frozen=True):
    """What a header says, and where the first block starts."""

    data: bytes
    definition: bytes
    codec: str
    sync: bytes
    start: int


def read_header(data: bytes) -> Container:
    """Return the header of a container; raise Malformed if there is none."""
    try:
        start = _walk_meta(data, len(MAGIC), 0)
        meta = _read_meta(data)
    except IndexError as error:
        raise Malformed("the container ends within its header") from error
    definition = meta.get("avro.schema")
    if definition is None:
        raise Malformed("the container's header has no avro.schema")
    codec = meta.get("avro.codec", b"null").decode("latin-1")
    if codec not in ("null", "deflate"):
        raise Malformed(f"the container's codec {codec!r} is not null or deflate")
    sync = data[start : start + _SYNC_BYTES]
    return Container(data, definition, codec, sync, start + _SYNC_BYTES)


def read_blocks(container: Container, expansion_max: int) -> Iterator[tuple[int, bytes]]:
    """Yield the number of datums and the bytes of each block, uncompressed within the limit."""
    data, at = container.data, container.start
    left = expansion_max
    while at < len(data):
        try:
            count, at = read_long(data, at)
            size, at = read_long(data, at)
        except IndexError as error:
            raise Malformed("the container ends within a block's header") from error
        end = at + size
        if count < 0 or size < 0 or end + _SYNC_BYTES > len(data):
            raise Malformed(f"the container's block at byte {at} is cut short")
        if data[end : end + _SYNC_BYTES] != container.sync:
            raise Malformed(f"the sync marker at byte {end} is not the container's")
        block = data[at:end]
        if container.codec == "deflate":
            block = _inflate(block, left)
        left -= len(block)
        yield count, block
        at = end + _SYNC_BYTES


def _inflate(block: bytes, expansion_max: int) -> bytes:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        whole = inflater.decompress(block, max(1, expansion_max))
    except zlib.error as error:
        raise Malformed(f"a block of the container is not deflated: {error}") from error
    if inflater.unconsumed_tail or not inflater.eof:
        raise Malformed("a block of the container is cut short, or expands beyond the limit")
    return whole


def _read_meta(data: bytes) -> dict[str, bytes]:
    """Read the map the walk has found sound."""
    meta: dict[str, bytes] = {}
    at = len(MAGIC)
    while True:
        count, at = read_long(data, at)
        if count == 0:
            return meta
        if count < 0:
            count = -count
            _, at = read_long(data, at)
        if len(meta) + count > _META_ENTRIES_MAX:
            raise Malformed(f"the container's header has more than {_META_ENTRIES_MAX} entries")
        for _ in range(count):
            size, at = read_long(data, at)
            key = data[at : at + size].decode()
            at += size
            size, at = read_long(data, at)
            meta[key] = data[at : at + size]
            at += size
