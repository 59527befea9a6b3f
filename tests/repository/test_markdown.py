"""Pages are wrapped without a change of what they show."""

import pytest

from tools import markdown

LONG = "A sentence of some length that goes on. " * 5


def test_a_long_paragraph_is_filled() -> None:
    wrapped = markdown.wrap(f"# Title\n\n{LONG}\nand on.\n")
    lines = wrapped.split("\n")
    assert max(map(len, lines)) <= markdown.LINE_CHARS_MAX
    assert wrapped.split() == f"# Title {LONG} and on.".split()
    assert lines[:2] == ["# Title", ""]


def test_an_item_of_a_list_keeps_its_indent() -> None:
    wrapped = markdown.wrap(f"- {LONG}\n  - {LONG}\n1. {LONG}\n").rstrip("\n").split("\n")
    starts = [line[:4] for line in wrapped]
    assert starts == ["- A ", "  on", "  - ", "    ", "1. A", "   o"]


@pytest.mark.parametrize(
    "text",
    [
        f"| {LONG} |\n",
        f"```\n{LONG}\n```\n",
        f"# {LONG}\n",
        f"Said:\n\n    {LONG}\n",
        f"{'x' * 200}\n",
        "Short lines\nare left where they break.\n",
    ],
)
def test_what_is_no_prose_or_fits_stays(text: str) -> None:
    assert markdown.wrap(text) == text
    assert markdown.long_lines(text) == []


def test_code_and_links_are_not_broken() -> None:
    text = "word " * 21 + "`danube topics list --namespace default` and [a long link](docs/a.md).\n"
    assert "`danube topics list --namespace default`" in markdown.wrap(text)
    assert markdown.long_lines(text) == [1]


def test_a_line_never_begins_with_what_opens_a_list() -> None:
    text = "x " * 59 + "y - z and more words behind it\n"
    assert all(not line.startswith("- ") for line in markdown.wrap(text).split("\n"))


def test_a_second_time_changes_nothing() -> None:
    once = markdown.wrap(f"{LONG}{LONG}\n\n- {LONG}\n  {LONG}\n")
    assert markdown.wrap(once) == once
