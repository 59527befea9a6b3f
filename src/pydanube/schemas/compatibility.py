"""Whether a new version of a schema may follow earlier ones."""

from collections.abc import Sequence
from typing import Literal, get_args

from msgspec import Struct
from typing_extensions import override

from pydanube.schemas.catalog import load_format
from pydanube.schemas.errors import UnknownSchemaFormat
from pydanube.schemas.format import Change, Incompatibility, Schema, SchemaTools

CompatibilityMode = Literal[
    "none",
    "backward",
    "forward",
    "full",
    "backward_transitive",
    "forward_transitive",
    "full_transitive",
]
Direction = Literal["backward", "forward", "evolution"]

DEFAULT_MODE: CompatibilityMode = "backward"


class Refusal(Struct, frozen=True):
    """Why a new version may not follow an earlier one.

    `previous` is the index of the earlier version in the sequence that was given. Backward: the new
    schema cannot read old data. Forward: the old schema cannot read new data. Evolution: the change
    is unsafe whoever reads.
    """

    previous: int
    direction: Direction
    incompatibility: Incompatibility

    @override
    def __str__(self) -> str:
        return f"{self.direction}: {self.incompatibility}"


def parse_mode(text: str) -> CompatibilityMode:
    """Return the mode `text` names, in any case; raise UnknownSchemaFormat otherwise."""
    wanted = text.strip().lower()
    for mode in get_args(CompatibilityMode):
        if mode == wanted:
            found: CompatibilityMode = mode
            return found
    names = ", ".join(get_args(CompatibilityMode))
    raise UnknownSchemaFormat(f"compatibility mode {text!r} does not exist; there are {names}")


def check(
    mode: CompatibilityMode, new: Schema, previous_versions: Sequence[Schema]
) -> list[Refusal]:
    """Return why `new` may not follow `previous_versions`, oldest first; empty if it may.

    Only the transitive modes look beyond the last of them. Schemas of different formats are
    compatible under `none` alone.
    """
    if mode == "none" or not previous_versions:
        return []
    last = len(previous_versions) - 1
    first = 0 if mode.endswith("_transitive") else last
    return [
        refusal
        for index in range(last, first - 1, -1)
        for refusal in _check_pair(mode, new, previous_versions[index], index)
    ]


def compatibility(writer: Schema, reader: Schema) -> list[Incompatibility]:
    """Return why `reader` cannot read everything `writer` writes; empty if it can."""
    if writer.format != reader.format:
        return [Incompatibility("", "schema_type_changed", writer.format, reader.format)]
    return load_format(writer.format, SchemaTools()).incompatibilities(writer, reader)


def difference(old: Schema, new: Schema) -> list[Change]:
    """Return what changed from `old` to `new`, for people to read."""
    if old.format != new.format:
        return [Change("", f"format {old.format} became {new.format}")]
    return load_format(old.format, SchemaTools()).difference(old, new)


def _check_pair(mode: CompatibilityMode, new: Schema, old: Schema, index: int) -> list[Refusal]:
    if new.format != old.format:
        fault = Incompatibility("", "schema_type_changed", old.format, new.format)
        return [Refusal(index, "evolution", fault)]
    if new.fingerprint == old.fingerprint:
        return []
    rules = load_format(new.format, SchemaTools())
    refusals = [Refusal(index, "evolution", fault) for fault in rules.evolution_faults(old, new)]
    if not mode.startswith("forward"):
        refusals += [
            Refusal(index, "backward", fault) for fault in rules.incompatibilities(old, new)
        ]
    if not mode.startswith("backward"):
        refusals += [
            Refusal(index, "forward", fault) for fault in rules.incompatibilities(new, old)
        ]
    return refusals
