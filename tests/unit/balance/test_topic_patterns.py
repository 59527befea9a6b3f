"""Which topics an operator means."""

import pytest

from pydanube.balance.topic_patterns import TopicPatterns, check_topic_pattern


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("/default/orders", ["/default/orders"], ["/default/orders-2", "/default/order"]),
        ("/default/*", ["/default/orders", "/default/x"], ["/default2/x", "/other/default"]),
        (
            "/default/critical-*",
            ["/default/critical-", "/default/critical-9"],
            ["/default/critical", "/default/a-critical-9", "/other/critical-9"],
        ),
        ("/*/audit", ["/a/audit", "/b/audit"], ["/a/audit2", "/audit/a"]),
        ("/a*/b*c", ["/a/bc", "/aaa/bbcc"], ["/ba/bc", "/a/b"]),
    ],
)
def test_a_star_stands_for_any_characters(
    pattern: str, matches: list[str], others: list[str]
) -> None:
    patterns = TopicPatterns(["/nobody/here", pattern])
    assert all(patterns.match(each) for each in matches)
    assert not any(patterns.match(each) for each in others)


def test_no_patterns_match_nothing() -> None:
    assert not TopicPatterns(()).match("/default/orders")


@pytest.mark.parametrize(
    "pattern", ["", "orders", "/default", "/default/", "//x", "/a/b/c", "*", "/a/b?", "/a /b"]
)
def test_a_pattern_no_topic_can_match_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"blacklist: .* matches no topic"):
        check_topic_pattern(pattern, "blacklist")
