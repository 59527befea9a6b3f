"""Finds topics by a regular expression over their names, whoever wrote it."""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from pydanube.errors import InvalidRequest
from pydanube.model.names import split_partition

PATTERN_CHARACTERS_MAX = 1_024


def bases_matching(names: Iterable[str], pattern: str) -> list[str]:
    """Return the topics whose whole name matches, sorted; of a partitioned one its base counts.

    Expressions are RE2's, whose time grows with the length of the names alone: a stranger's
    expression cannot hold the broker up.
    """
    if not 1 <= len(pattern) <= PATTERN_CHARACTERS_MAX:
        raise InvalidRequest(f"a pattern has 1 to {PATTERN_CHARACTERS_MAX} characters")
    bases = sorted({_base_of(name) for name in names})
    try:
        found = pc.match_substring_regex(pa.array(bases, pa.utf8()), rf"\A(?:{pattern})\z")
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"pattern {pattern!r} is no regular expression: {error}") from None
    return [base for base, matches in zip(bases, found.to_pylist(), strict=True) if matches]


def _base_of(name: str) -> str:
    split = split_partition(name)
    return name if split is None else split[0]
