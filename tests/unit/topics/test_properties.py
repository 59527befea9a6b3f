"""Texts kept with a topic are few and short."""

import pytest

from pydanube.errors import InvalidRequest
from pydanube.topics.properties import PROPERTIES_MAX, VALUE_BYTES_MAX, with_property


def test_a_property_is_set_changed_and_taken_away() -> None:
    one = with_property({}, "a", "1")
    assert with_property(one, "a", "2") == {"a": "2"}
    assert with_property(one, "a", None) == {}
    assert with_property(one, "nothing", None) == one


def test_bounds_hold() -> None:
    full = {f"p{number}": "" for number in range(PROPERTIES_MAX)}
    with pytest.raises(InvalidRequest, match="at most"):
        with_property(full, "one more", "")
    assert with_property(full, "p0", "changed")["p0"] == "changed"
    with pytest.raises(InvalidRequest, match="bytes"):
        with_property({}, "a", "ä" * (VALUE_BYTES_MAX // 2 + 1))
    with pytest.raises(InvalidRequest, match="name"):
        with_property({}, "", "x")
