import time

import pytest

from pydanube.errors import InvalidRequest
from pydanube.topics.patterns import PATTERN_CHARACTERS_MAX, bases_matching

NAMES = ["/shop/orders-part-1", "/shop/orders-part-0", "/shop/orders-old", "/lab/orders", "/lab/x"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (".*", ["/lab/orders", "/lab/x", "/shop/orders", "/shop/orders-old"]),
        ("/shop/.*", ["/shop/orders", "/shop/orders-old"]),
        ("/shop/orders", ["/shop/orders"]),
        ("/lab/x|/shop/orders", ["/lab/x", "/shop/orders"]),
        ("(?i)/LAB/.", ["/lab/x"]),
        ("orders", []),
        ("/lab/.*-part-0", []),
    ],
)
def test_whole_names_are_matched_and_partitions_count_as_their_base(pattern, found):
    assert bases_matching(NAMES, pattern) == found


@pytest.mark.parametrize("pattern", ["(", "[a", "a{2,1}", r"(a)\1", "x" * 2_000, ""])
def test_what_is_no_expression_is_refused(pattern):
    with pytest.raises(InvalidRequest, match=r"no regular expression|1 to \d+ characters"):
        bases_matching(NAMES, pattern)


def test_an_expression_meant_to_take_for_ever_does_not():
    names = [f"/default/{'a' * 200}{number}" for number in range(1_000)]
    started = time.monotonic()
    assert bases_matching(names, "/default/(a+)+" * 1 + "(a*)*" * 150 + "!") == []
    assert time.monotonic() - started < 5
    assert PATTERN_CHARACTERS_MAX >= 5 * 150
