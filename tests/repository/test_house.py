"""The figures of the house stay within their bounds, and counting notices what grows."""

from pathlib import Path

import pytest

from tools import house

PROJECT = """
[[tool.importlinter.contracts]]
source_modules = ["pydanube.core"]
forbidden_modules = ["asyncio"]
"""
DOOR = '''"""A door."""

from pydanube.core import decide


class Door:
    """Opens."""

    def __init__(self) -> None:
        self.one = 1
        self.two = decide()

    def open(self) -> None:
        """Open."""
'''
CORE = '''"""Decides."""


def decide() -> int:
    """Decide."""
    # Because it must be.
    return 2
'''


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "src/pydanube").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (tmp_path / "src/pydanube/door.py").write_text(DOOR, encoding="utf-8")
    (tmp_path / "src/pydanube/core.py").write_text(CORE, encoding="utf-8")
    return tmp_path


def test_the_house_is_within_its_bounds() -> None:
    measured = house.measure(house.REPOSITORY)
    assert house.beyond(measured, house.bounds_of(house.REPOSITORY)) == []


def test_a_small_house_is_counted(small: Path) -> None:
    measured = house.measure(small)
    assert measured.files == [(14, "pydanube.door"), (7, "pydanube.core")]
    assert measured.methods == [(2, "pydanube.door.Door")]
    assert measured.attributes == [(2, "pydanube.door.Door")]
    assert measured.imports[0] == (1, "pydanube.door")
    assert measured.importers == [(1, "pydanube.core")]
    assert measured.comments_in_cores == pytest.approx(1 / 7)
    assert measured.words_in_cores == pytest.approx(3 / 7)
    assert measured.pure == 1
    assert measured.duplicates == 0


def test_a_copy_is_counted_once_however_long_it_is(small: Path) -> None:
    copy = small / "src/pydanube/copy.py"
    lines = "".join(f"value_{number} = {number}\n" for number in range(9))
    copy.write_text(lines, encoding="utf-8")
    (small / "src/pydanube/original.py").write_text(lines, encoding="utf-8")
    assert house.measure(small).duplicates == 1


def test_what_is_beyond_its_bound_is_named(small: Path) -> None:
    measured = house.measure(small)
    bounds = {
        "at_most": {**measured.figures(), "methods_max": 1},
        "at_least": {**measured.floors(), "pure_modules": 2},
    }
    assert house.beyond(measured, bounds) == [
        "methods_max is 2, more than 1",
        "pure_modules is 1, less than 2",
    ]
