"""Which earlier versions a new one is compared with, and in which direction."""

from typing import Any

import pytest

from pydanube.schemas.compatibility import check, compatibility, difference, parse_mode
from pydanube.schemas.errors import UnknownSchemaFormat
from tests.support.schema_cases import parse


def record(*fields: str) -> Any:
    """A record whose fields have a default if they end with `=`."""
    return parse(
        "avro",
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": each.rstrip("="), "type": "int", **({"default": 0} if "=" in each else {})}
                for each in fields
            ],
        },
    )


ONE, TWO, THREE = record("a", "b"), record("a", "b="), record("a", "b=", "c=")


def verdict(mode: Any, new: Any, *previous: Any) -> list[tuple[int, str]]:
    return [(each.previous, each.direction) for each in check(mode, new, previous)]


def test_none_allows_everything() -> None:
    assert verdict("none", parse("string", {}), ONE) == []


def test_the_first_version_is_always_allowed() -> None:
    assert verdict("full_transitive", ONE) == []


def test_backward_lets_the_new_read_the_old() -> None:
    assert verdict("backward", record("a"), ONE) == []
    assert verdict("backward", record("a", "b", "c"), ONE) == [(0, "backward")]


def test_forward_lets_the_old_read_the_new() -> None:
    assert verdict("forward", record("a", "b", "c"), ONE) == []
    assert verdict("forward", record("a"), ONE) == [(0, "forward")]


def test_full_asks_for_both() -> None:
    assert verdict("full", record("a", "c"), ONE) == [(0, "backward"), (0, "forward")]
    assert verdict("full", THREE, TWO) == []


def test_only_transitive_modes_look_beyond_the_last_version() -> None:
    without_b = record("a")
    assert verdict("forward", without_b, ONE, TWO) == []
    assert verdict("forward_transitive", without_b, ONE, TWO) == [(0, "forward")]
    back = record("a", "b")
    assert verdict("backward", back, without_b, ONE) == []
    assert verdict("backward_transitive", back, without_b, ONE) == [(0, "backward")]
    assert verdict("full_transitive", back, without_b, ONE) == [(0, "backward")]


def test_another_format_is_allowed_under_none_alone() -> None:
    refusals = check("backward", parse("string", {}), [ONE])
    assert [str(each) for each in refusals] == [
        "evolution: the schema itself: schema_type_changed (writer: avro; reader: string)"
    ]
    assert compatibility(ONE, parse("string", {}))[0].rule == "schema_type_changed"
    assert str(difference(ONE, parse("string", {}))[0]) == "(root): format avro became string"


def test_primitives_are_compatible_with_themselves() -> None:
    for name in ("bytes", "string", "number"):
        assert verdict("full", parse(name, {}), parse(name, {})) == []


def test_modes_are_read_in_any_case() -> None:
    assert parse_mode(" Full_Transitive ") == "full_transitive"
    with pytest.raises(UnknownSchemaFormat, match="there are none, backward"):
        parse_mode("sideways")
