"""The repository keeps the house rules, and each rule notices what breaks it."""

from pathlib import Path

import pytest

from tools import tidy


@pytest.mark.parametrize("rule", tidy.RULES, ids=lambda rule: rule.__name__)
def test_the_repository_keeps_the_rule(rule: tidy.Rule) -> None:
    assert list(rule(tidy.REPOSITORY)) == []


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A small repository in which everything is right."""
    files = {
        "pyproject.toml": '[project]\nversion = "0.1.0"\nscripts = {x = "pydanube.main:run"}\n',
        "Makefile": "test: ready\n\tpytest\n",
        "CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n## 0.1.0\n",
        "README.md": "[how](docs/how.md#the-way), [a](docs/decisions/0001-a.md), `make test`.\n",
        "docs/how.md": "# How\n\n## The way\n",
        "docs/decisions/0001-a.md": "# A\n\n## Context\n\n## Decision\n\n## Cost\n",
        "src/pydanube/__init__.py": '__version__ = "0.1.0"\n',
        "src/pydanube/main.py": "from pydanube import door\n",
        "src/pydanube/door.py": "",
    }
    for name, text in files.items():
        write(tmp_path, name, text)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_nothing_is_found_where_everything_is_right(house: Path) -> None:
    assert [problem for rule in tidy.RULES for problem in rule(house)] == []


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        (tidy.no_file_is_too_long, "src/pydanube/door.py", "#\n" * 701),
        (tidy.no_line_of_a_page_is_too_long, "README.md", "word " * 25),
        (tidy.no_text_names_a_machine, "README.md", "Look into /root/src/notes."),
        (
            tidy.no_text_names_a_machine,
            "requirements/dev.lock",
            "--index-url https://artifactory.x/simple",
        ),
        (tidy.nothing_is_left_undone, "src/pydanube/door.py", "# TODO: open it\n"),
        (tidy.nothing_is_left_undone, "src/pydanube/door.py", "raise NotImplementedError\n"),
        (tidy.every_module_is_used, "src/pydanube/attic.py", ""),
        (tidy.every_module_is_used, "tests/support/attic.py", ""),
        (tidy.every_package_has_an_init, "src/pydanube/cellar/wine.py", ""),
        (tidy.links_lead_somewhere, "README.md", "[gone](docs/gone.md)"),
        (tidy.links_lead_somewhere, "README.md", "[gone](docs/how.md#the-other-way)"),
        (tidy.files_that_pages_name_exist, "README.md", "Look into `cellar/wine.py`."),
        (tidy.commands_exist_in_the_makefile, "README.md", "Run `make cake`."),
        (tidy.commands_exist_in_the_makefile, "README.md", "```sh\nmake cake\n```\n"),
        (tidy.versions_agree, "CHANGELOG.md", "## Unreleased\n\n## 0.0.9\n"),
        (tidy.versions_agree, "CHANGELOG.md", "## 0.1.0\n"),
        (tidy.versions_agree, "src/pydanube/__init__.py", '__version__ = "0.2.0"\n'),
        (tidy.every_page_is_reached_from_the_readme, "docs/lonely.md", "# Lonely"),
        (
            tidy.names_of_the_glossary_exist,
            "docs/concepts/glossary.md",
            "| door | opens | `pydanube.gate` |",
        ),
        (
            tidy.what_is_called_pure_is_under_a_contract,
            "src/pydanube/door.py",
            '"""Opens by itself. Pure."""',
        ),
        (tidy.decisions_are_numbered_and_complete, "docs/decisions/0003-c.md", "# C\n"),
    ],
)
def test_a_broken_rule_is_noticed(house: Path, rule: tidy.Rule, name: str, text: str) -> None:
    write(house, name, text)
    assert list(rule(house)) != []


def test_an_open_task_with_a_number_is_allowed(house: Path) -> None:
    write(house, "src/pydanube/door.py", "# TODO(#12): paint it\n")
    assert list(tidy.nothing_is_left_undone(house)) == []
