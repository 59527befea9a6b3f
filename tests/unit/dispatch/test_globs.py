import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.dispatch.globs import Glob


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("*", "", True),
        ("", "", True),
        ("", "a", False),
        ("eu.*", "eu.", True),
        ("eu.*", "eux", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("*a", "ba", True),
        ("*a", "ab", False),
        ("a**b", "ab", True),
        ("[a].+", "[a].+", True),
        ("[a].+", "a", False),
        ("?", "ä", False),
        ("??", "ä", True),
    ],
)
def test_a_pattern_matches_the_whole_key(pattern: str, key: str, expected: bool) -> None:
    assert Glob(pattern).matches(key) is expected


@given(st.text("ab*?", max_size=8), st.text("abä", max_size=8))
def test_it_agrees_with_a_regular_expression_over_bytes(pattern: str, key: str) -> None:
    parts = {ord("*"): b".*", ord("?"): b"."}
    expression = b"".join(parts.get(byte, re.escape(bytes([byte]))) for byte in pattern.encode())
    expected = re.fullmatch(expression, key.encode(), re.DOTALL) is not None
    assert Glob(pattern).matches(key) is expected


def test_a_pattern_made_to_backtrack_takes_no_longer() -> None:
    glob = Glob("*a" * 60 + "b")
    started = time.process_time()
    assert not glob.matches("a" * 20_000)
    assert time.process_time() - started < 1
