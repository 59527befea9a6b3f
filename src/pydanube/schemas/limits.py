"""How large and how deep a schema, and what it describes, may be."""

from typing import Annotated

from msgspec import Meta, Struct

_Positive = Annotated[int, Meta(ge=1)]


class SchemaLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds that keep a hostile schema or payload from exhausting the broker.

    A schema beyond one of them is refused with `SchemaTooComplex`, which names the limit.
    """

    definition_bytes_max: _Positive = 256 * 1024
    """Bytes of a definition."""
    depth_max: _Positive = 64
    """Levels of objects and lists in a definition, and of types within types."""
    nodes_max: _Positive = 10_000
    """Objects, lists and values in a definition."""
    fields_max: _Positive = 2_000
    """Fields of one record, properties of one object, branches of one union."""
    enum_values_max: _Positive = 2_000
    """Values of one enumeration."""
    name_chars_max: _Positive = 512
    """Characters of a name, dots included."""
    references_max: _Positive = 1_000
    """`$ref`s of a JSON Schema; named types used by an Avro schema or a Protobuf file."""
    pattern_chars_max: _Positive = 1_000
    """Characters of a regular expression."""
    pattern_program_bytes_max: _Positive = 1 << 20
    """Bytes of a compiled regular expression; large counts and classes make it grow."""
    pattern_steps_max: _Positive = 10_000
    """Steps back while a regular expression with look-around or back references is matched."""
    expansion_max: _Positive = 20_000
    """Parts of a JSON Schema after each `$ref` has been replaced by what it names."""
    payload_depth_max: _Positive = 100
    """Levels of a value that a recursive schema describes."""
    recursion_work_max: _Positive = 1_000_000
    """Comparisons one value may cause under a recursive JSON Schema with alternatives."""
    visits_per_byte_max: _Positive = 100
    """Parts of an Avro record to look at for each byte that it takes."""
    container_expansion_max: _Positive = 64 * 1024 * 1024
    """Bytes a compressed Avro container may grow to."""
