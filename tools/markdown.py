"""Wraps the prose of Markdown pages; tables, code and headings stay as they are.

python tools/markdown.py    wrap every page that has a line that is too long (part of `make format`)

A paragraph is filled anew only if one of its lines is too long, so a change of one sentence stays
a change of one paragraph. Code spans and links are never broken across lines: people search for
them. What has no space to break at stays as long as it is.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
LINE_CHARS_MAX = 120

_FENCE = re.compile(r"^\s*(?:```|~~~)")
_FIXED = re.compile(r"^\s*(?:$|[|#<>]|---+$)")
_INDENTED = re.compile(r"^ {4}")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.) +")
_WORD = re.compile(r"(?:`[^`]*`|!?\[[^\]]*\]\([^)\s]*\)|\S)+")
_OPENS_A_BLOCK = re.compile(r"^(?:[-*+#>|]+|\d+[.)])$")


def wrap(text: str) -> str:
    """Return the page without prose lines that are too long; a second call changes nothing."""
    lines: list[str] = []
    for is_prose, block in _blocks(text.split("\n")):
        too_long = any(len(line) > LINE_CHARS_MAX for line in block)
        lines += _filled(block) if is_prose and too_long else block
    return "\n".join(lines)


def long_lines(text: str) -> list[int]:
    """Return the numbers of the lines that `wrap` would break."""
    found: list[int] = []
    number = 1
    for is_prose, block in _blocks(text.split("\n")):
        if is_prose and _filled(block) != block:
            found += [number + at for at, line in enumerate(block) if len(line) > LINE_CHARS_MAX]
        number += len(block)
    return found


def _blocks(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """Part a page: (True, lines of a paragraph or list item) and (False, one line to keep)."""
    block: list[str] = []
    fenced = False
    for line in lines:
        fence = bool(_FENCE.match(line))
        code = not block and bool(_INDENTED.match(line)) and not _ITEM.match(line)
        keep = fenced or fence or code or bool(_FIXED.match(line))
        fenced ^= fence
        if block and (keep or _ITEM.match(line)):
            yield True, block
            block = []
        if keep:
            yield False, [line]
        else:
            block.append(line)
    if block:
        yield True, block


def _filled(block: list[str]) -> list[str]:
    """Fill one paragraph or list item, its later lines indented as its text is."""
    bullet = _ITEM.match(block[0])
    first = bullet[0] if bullet else " " * (len(block[0]) - len(block[0].lstrip()))
    text = " ".join([block[0][len(first) :], *(line.strip() for line in block[1:])])
    lines = [first]
    for word in _WORD.findall(text):
        line = lines[-1]
        is_new = not line.strip() or line == first
        fits = len(line) + (0 if is_new else 1) + len(word) <= LINE_CHARS_MAX
        if is_new or fits or _OPENS_A_BLOCK.match(word):
            lines[-1] = line + ("" if is_new else " ") + word
        else:
            lines.append(" " * len(first) + word)
    return lines


def main() -> int:
    """Wrap the pages that git tracks, and name those that changed."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "*.md"], cwd=REPOSITORY, capture_output=True, check=True
    )
    for name in filter(None, listing.stdout.decode().split("\0")):
        path = REPOSITORY / name
        before = path.read_text(encoding="utf-8")
        after = wrap(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"wrapped {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
