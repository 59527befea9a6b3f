"""The house rules that a machine can see. Each rule lists what breaks it, one line per place.

python tools/tidy.py    print everything that breaks a rule; tests/repository runs the same
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from tools import markdown  # noqa: E402  (found through the line above)

FILE_LINES_MAX = 700
LONG_ON_PURPOSE = ("requirements/", "LICENSE", "docs/reference/")
GENERATED = "src/pydanube/wire/danube/generated/"

MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/")
REGISTRY_HOST = re.compile(r"\b(?:pypi\.org|pythonhosted\.org|artifactory|nexus\.)\b")
OPEN_TASK = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
NOT_WRITTEN = re.compile(r"\bNotImplementedError\b")

MARKDOWN_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
NAMED_FILE = re.compile(r"`((?:\w+/)+[\w.-]+\.(?:py|md|proto))`")
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
MAKE_COMMAND = re.compile(r"\bmake (?P<target>[a-z]+)\b")
CHANGELOG_VERSION = re.compile(r"^## (?P<version>\d+\.\d+\.\d+)", re.MULTILINE)

Rule = Callable[[Path], Iterator[str]]


def no_file_is_too_long(root: Path) -> Iterator[str]:
    """Long files hide things."""
    for path in text_files(root):
        name = relative(path, root)
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > FILE_LINES_MAX and not name.startswith((*LONG_ON_PURPOSE, GENERATED)):
            yield f"{name} has {lines} lines, more than {FILE_LINES_MAX}"


def no_line_of_a_page_is_too_long(root: Path) -> Iterator[str]:
    """A line of prose fits beside a diff; tables, code and headings are as long as they are."""
    for path in markdown_files(root):
        for number in markdown.long_lines(path.read_text(encoding="utf-8")):
            most = markdown.LINE_CHARS_MAX
            yield f"{relative(path, root)}:{number} is longer than {most}: `make format` wraps it"


def no_text_names_a_machine(root: Path) -> Iterator[str]:
    """The repository works anywhere: no paths of one machine, no addresses of one registry."""
    for path in text_files(root):
        name = relative(path, root)
        if name in ("tools/tidy.py", "tests/repository/test_tidy.py"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for pattern in (MACHINE_PATH, REGISTRY_HOST):
                found = pattern.search(line)
                if found:
                    yield f"{name}:{number} names {found[0]!r}"


def nothing_is_left_undone(root: Path) -> Iterator[str]:
    """An open task has a number, TODO(#12), and code that is not written is not there."""
    for path in python_files(root):
        name = relative(path, root)
        if name in ("tools/tidy.py", "tests/repository/test_tidy.py"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = OPEN_TASK.search(line) or NOT_WRITTEN.search(line)
            if found:
                yield f"{name}:{number} has an open {found[0]}"


def every_module_is_used(root: Path) -> Iterator[str]:
    """A module nobody imports, and no entry point names, is dead."""
    imported = set(_imported_modules(root))
    mentioned = _mentioned_modules(root)
    for folder in ("src", "tests/support"):
        base = root / "src" if folder == "src" else root
        for path in sorted((root / folder).rglob("*.py")):
            name = relative(path, root)
            if path.name in ("__init__.py", "__main__.py") or name.startswith(GENERATED):
                continue
            module = ".".join(path.relative_to(base).with_suffix("").parts)
            if module not in imported and module not in mentioned:
                yield f"{name} is imported by nothing"


def every_package_has_an_init(root: Path) -> Iterator[str]:
    """A folder without __init__.py is not packaged as the others are."""
    for folder in sorted({path.parent for path in (root / "src").rglob("*.py")}):
        if folder != root / "src" and not (folder / "__init__.py").exists():
            yield f"{relative(folder, root)} has no __init__.py"


def links_lead_somewhere(root: Path) -> Iterator[str]:
    """A relative link in a page names a file that is there."""
    for path in markdown_files(root):
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        for match in MARKDOWN_LINK.finditer(text):
            target, _, anchor = match["target"].partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            place = (path.parent / target) if target else path
            if not place.exists():
                yield f"{relative(path, root)} links to {match['target']}, which is not there"
            elif anchor and place.suffix == ".md" and anchor not in anchors(place):
                yield f"{relative(path, root)} links to {match['target']}: no such heading"


def files_that_pages_name_exist(root: Path) -> Iterator[str]:
    """A file in a code span, such as `cluster/planning.py`, is there: below root, code or tests."""
    bases = (root, root / "src/pydanube", root / "tests")
    for path in markdown_files(root):
        page = relative(path, root)
        if page == "CHANGELOG.md" or page.startswith("docs/guides/"):
            continue  # Files as they were, and files of users.
        for name in NAMED_FILE.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
            if not any((base / name).exists() for base in bases):
                yield f"{page} names {name}, which is not there"


def commands_exist_in_the_makefile(root: Path) -> Iterator[str]:
    """What the pages tell people to type works."""
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for path in markdown_files(root):
        text = path.read_text(encoding="utf-8")
        code = [match["body"] for match in FENCE.finditer(text)]
        code += re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
        for match in (m for part in code for m in MAKE_COMMAND.finditer(part)):
            if match["target"] not in targets:
                yield f"{relative(path, root)} says `make {match['target']}`; there is none"


def versions_agree(root: Path) -> Iterator[str]:
    """The changelog's newest release, the package and its metadata have one version."""
    with (root / "pyproject.toml").open("rb") as file:
        packaged = tomllib.load(file)["project"]["version"]
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    released = CHANGELOG_VERSION.search(changelog)
    if released is None or released["version"] != packaged:
        yield f"CHANGELOG.md does not begin with {packaged}, the version of pyproject.toml"
    source = (root / "src/pydanube/__init__.py").read_text(encoding="utf-8")
    if f'__version__ = "{packaged}"' not in source:
        yield f"pydanube.__version__ is not {packaged}, the version of pyproject.toml"
    if "## Unreleased" not in changelog:
        yield "CHANGELOG.md has no section Unreleased"


def decisions_are_numbered_and_complete(root: Path) -> Iterator[str]:
    """docs/decisions/NNNN-title.md: context, decision, cost, without gaps in the numbers."""
    for number, path in enumerate(sorted((root / "docs/decisions").glob("[0-9]*.md")), 1):
        name = relative(path, root)
        if not path.name.startswith(f"{number:04d}-"):
            yield f"{name} should have the number {number:04d}"
        text = path.read_text(encoding="utf-8")
        for heading in ("## Context", "## Decision", "## Cost"):
            if f"\n{heading}\n" not in text:
                yield f"{name} has no heading {heading!r}"


def what_is_called_pure_is_under_a_contract(root: Path) -> Iterator[str]:
    """A module whose docstring says "Pure" may do no I/O, and import-linter checks that."""
    with (root / "pyproject.toml").open("rb") as file:
        linter = tomllib.load(file).get("tool", {}).get("importlinter", {})
    covered = [
        module
        for contract in linter.get("contracts", [])
        if "asyncio" in contract.get("forbidden_modules", [])
        for module in contract["source_modules"]
    ]
    for path in sorted((root / "src/pydanube").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"\bPure\b", ast.get_docstring(ast.parse(text)) or ""):
            continue
        parts = path.relative_to(root / "src").with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        if not any(module == each or module.startswith(f"{each}.") for each in covered):
            yield f"{module} calls itself pure and is under no contract of pyproject.toml"


def every_page_is_reached_from_the_readme(root: Path) -> Iterator[str]:
    """A page that neither the README nor a list of pages links to is found by nobody."""
    lists = [root / "README.md", root / "docs/performance.md", root / "docs/decisions/README.md"]
    linked = {
        (page.parent / match["target"].partition("#")[0]).resolve()
        for page in lists
        if page.exists()
        for match in MARKDOWN_LINK.finditer(page.read_text(encoding="utf-8"))
    }
    for path in markdown_files(root):
        name = relative(path, root)
        if name.startswith("docs/") and path.resolve() not in linked:
            yield f"{name} is linked to by no list of pages; name it in README.md"


def names_of_the_glossary_exist(root: Path) -> Iterator[str]:
    """The glossary's names in the code are there, so that a renaming renames them too."""
    page = root / "docs/concepts/glossary.md"
    if not page.exists():
        return
    code = "\n".join(path.read_text(encoding="utf-8") for path in (root / "src").rglob("*.py"))
    for row in re.findall(r"^\|.*\|([^|]*)\|$", page.read_text(encoding="utf-8"), re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", row):
            parts = name.split(".")
            as_path = root / "src/pydanube" / Path(*parts)
            is_module = as_path.is_dir() or as_path.with_suffix(".py").exists()
            if not is_module and not re.search(rf"\b{parts[-1]}\b", code):
                yield f"docs/concepts/glossary.md names {name}, which is not in the code"


RULES: tuple[Rule, ...] = (
    every_page_is_reached_from_the_readme,
    names_of_the_glossary_exist,
    what_is_called_pure_is_under_a_contract,
    no_file_is_too_long,
    no_line_of_a_page_is_too_long,
    no_text_names_a_machine,
    nothing_is_left_undone,
    every_module_is_used,
    every_package_has_an_init,
    links_lead_somewhere,
    files_that_pages_name_exist,
    commands_exist_in_the_makefile,
    versions_agree,
    decisions_are_numbered_and_complete,
)


def snippets(root: Path) -> Iterator[tuple[str, str]]:
    """Give (place, code) of every Python snippet marked to be run: ```python run."""
    for path in markdown_files(root):
        text = path.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            if match["info"].split() == ["python", "run"]:
                line = text[: match.start()].count("\n") + 2
                yield f"{relative(path, root)}:{line}", match["body"]


def tracked_files(root: Path) -> list[Path]:
    """Return what git tracks, or everything where there is no git."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=False,
    )
    if listing.returncode != 0:
        return sorted(path for path in root.rglob("*") if path.is_file())
    names = listing.stdout.decode().split("\0")
    return sorted(root / name for name in names if name and (root / name).is_file())


def text_files(root: Path) -> Iterator[Path]:
    """Give the files that people read."""
    for path in tracked_files(root):
        try:
            path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        yield path


def python_files(root: Path) -> Iterator[Path]:
    """Give Python files that people wrote."""
    for path in tracked_files(root):
        if path.suffix == ".py" and not relative(path, root).startswith(GENERATED):
            yield path


def markdown_files(root: Path) -> Iterator[Path]:
    """Give the pages."""
    return (path for path in tracked_files(root) if path.suffix == ".md")


def anchors(page: Path) -> set[str]:
    """Return what a link into the page may name after #."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


def relative(path: Path, root: Path) -> str:
    """Name a file as people do."""
    return path.relative_to(root).as_posix()


def _imported_modules(root: Path) -> Iterator[str]:
    for path in (each for each in tracked_files(root) if each.suffix == ".py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _mentioned_modules(root: Path) -> set[str]:
    """Return modules named in texts: entry points, and those that are imported when used."""
    texts = [(root / "pyproject.toml").read_text(encoding="utf-8")]
    texts += [path.read_text(encoding="utf-8") for path in python_files(root)]
    return {
        match[1]
        for text in texts
        for match in re.finditer(r"[\"'](pydanube(?:\.\w+)+)[:\"']", text)
    }


def main() -> int:
    """Print what breaks a rule; return the exit code."""
    problems = [problem for rule in RULES for problem in rule(REPOSITORY)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
