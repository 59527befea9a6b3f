"""The figures of the house: how large files, functions and doors are, and who imports whom.

    python tools/house.py            print them, the largest of each kind by name
    python tools/house.py --check    exit with 1 if one is beyond its bound

The bounds stand in pyproject.toml under [tool.house]. They are a ratchet: whoever brings a figure
down lowers its bound, and whoever has a good reason to raise one says it in the commit.
"""

import ast
import statistics
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

REPOSITORY = Path(__file__).resolve().parent.parent
GENERATED = ("pydanube/wire/danube/generated/", "pydanube/sync.py")
SHARED_LINES = 6
"""So many equal lines in a row, in two places, count as a duplicate."""
FUNCTION_LINES_MAX = 70
NAMED = 5
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class House:
    """What was counted. Each list holds (size, name), the largest first."""

    files: list[tuple[int, str]] = field(default_factory=list)
    functions: list[tuple[int, str]] = field(default_factory=list)
    methods: list[tuple[int, str]] = field(default_factory=list)
    attributes: list[tuple[int, str]] = field(default_factory=list)
    imports: list[tuple[int, str]] = field(default_factory=list)
    importers: list[tuple[int, str]] = field(default_factory=list)
    comments_in_cores: float = 0.0
    words_in_cores: float = 0.0
    pure: int = 0
    duplicates: int = 0

    def figures(self) -> dict[str, float]:
        """Return the figures that have bounds, by name."""
        sizes = [size for size, _ in self.files]
        lengths = [size for size, _ in self.functions]
        return {
            "file_lines_median": statistics.median(sizes),
            "file_lines_p90": _percentile(sizes, 0.9),
            "file_lines_max": max(sizes),
            "function_lines_median": statistics.median(lengths),
            "function_lines_p90": _percentile(lengths, 0.9),
            "functions_over_70_lines": sum(size > FUNCTION_LINES_MAX for size in lengths),
            "methods_max": max(size for size, _ in self.methods),
            "classes_over_30_methods": sum(size > 30 for size, _ in self.methods),
            "attributes_max": max(size for size, _ in self.attributes),
            "imports_max": max(size for size, _ in self.imports),
            "duplicates": self.duplicates,
        }

    def floors(self) -> dict[str, float]:
        """Return the figures that shall not fall, by name."""
        return {
            "comments_in_cores_percent": round(100 * self.comments_in_cores, 1),
            "words_in_cores_percent": round(100 * self.words_in_cores, 1),
            "pure_modules": self.pure,
        }


def measure(root: Path) -> House:
    """Count everything below `src`."""
    house = House()
    cores = _cores(root)
    trees: dict[str, ast.Module] = {}
    texts: dict[str, list[str]] = {}
    for path in _sources(root):
        name = _module(path, root)
        text = path.read_text(encoding="utf-8")
        texts[name] = text.splitlines()
        trees[name] = ast.parse(text)
        house.files.append((len(texts[name]), name))
        _measure_definitions(trees[name], name, house)
    _measure_imports(trees, house)
    house.duplicates = _duplicates(texts)
    pure = [name for name in trees if _is_below(name, cores)]
    house.pure = len(pure)
    lines = sum(len(texts[name]) for name in pure) or 1
    comments = sum(_comment_lines(root, name) for name in pure)
    documented = sum(_docstring_lines(trees[name]) for name in pure)
    house.comments_in_cores = comments / lines
    house.words_in_cores = (comments + documented) / lines
    for each in (house.files, house.functions, house.methods, house.attributes):
        each.sort(reverse=True)
    house.imports.sort(reverse=True)
    house.importers.sort(reverse=True)
    return house


def beyond(house: House, bounds: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a line for each figure that is beyond its bound."""
    problems = [
        f"{name} is {value:g}, more than {bounds['at_most'][name]:g}"
        for name, value in house.figures().items()
        if value > bounds["at_most"][name]
    ]
    problems += [
        f"{name} is {value:g}, less than {bounds['at_least'][name]:g}"
        for name, value in house.floors().items()
        if value < bounds["at_least"][name]
    ]
    return problems


def bounds_of(root: Path) -> dict[str, dict[str, float]]:
    """Read the bounds."""
    with (root / "pyproject.toml").open("rb") as file:
        found: dict[str, dict[str, float]] = tomllib.load(file)["tool"]["house"]
    return found


def main(arguments: list[str]) -> int:
    """Print the figures; with --check only what is beyond its bound."""
    house = measure(REPOSITORY)
    problems = beyond(house, bounds_of(REPOSITORY))
    if "--check" not in arguments:
        for line in report(house):
            print(line)
    for problem in problems:
        print(f"beyond its bound: {problem}; see [tool.house] in pyproject.toml")
    return 1 if problems else 0


def report(house: House) -> Iterator[str]:
    """Give the figures, then the largest of each kind."""
    yield f"files {len(house.files)}, functions {len(house.functions)}"
    for name, value in {**house.figures(), **house.floors()}.items():
        yield f"{name} {value:g}"
    for title, rows in (
        ("longest files", house.files),
        ("longest functions", house.functions),
        ("classes with most methods", house.methods),
        ("classes with most attributes", house.attributes),
        ("modules that import most of ours", house.imports),
        ("modules that most of ours import", house.importers),
    ):
        yield f"{title}: " + ", ".join(f"{name} {size}" for size, name in rows[:NAMED])


def _sources(root: Path) -> Iterator[Path]:
    for path in sorted((root / "src").rglob("*.py")):
        if not path.relative_to(root / "src").as_posix().startswith(GENERATED):
            yield path


def _module(path: Path, root: Path) -> str:
    parts = path.relative_to(root / "src").with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def _cores(root: Path) -> list[str]:
    with (root / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return [
        module
        for contract in contracts
        if "asyncio" in contract.get("forbidden_modules", [])
        for module in contract["source_modules"]
    ]


def _is_below(name: str, modules: list[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in modules)


def _measure_definitions(tree: ast.Module, module: str, house: House) -> None:
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            house.functions.append((length, f"{module}.{node.name}"))
        elif isinstance(node, ast.ClassDef):
            methods = [
                each
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            house.methods.append((len(methods), f"{module}.{node.name}"))
            own = {each.attr for each in ast.walk(node) if _is_own_attribute(each)}
            house.attributes.append((len(own), f"{module}.{node.name}"))


def _is_own_attribute(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def _measure_imports(trees: Mapping[str, ast.Module], house: House) -> None:
    importers: Counter[str] = Counter()
    for name, tree in trees.items():
        imported = {each for each in _imported(tree) if each in trees}
        importers.update(imported)
        house.imports.append((len(imported), name))
    house.importers = [(count, name) for name, count in importers.items()]


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def _comment_lines(root: Path, module: str) -> int:
    base = root / "src" / Path(*module.split("."))
    path = base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"
    with path.open("rb") as file:
        return sum(token.type == tokenize.COMMENT for token in tokenize.tokenize(file.readline))


def _docstring_lines(tree: ast.Module) -> int:
    found = 0
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        if isinstance(node.value.value, str):
            found += (node.end_lineno or node.lineno) - node.lineno + 1
    return found


def _duplicates(texts: Mapping[str, list[str]]) -> int:
    """Count runs of equal lines in two places, without imports, blank lines and comments."""
    places: defaultdict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, lines in texts.items():
        kept = [text for line in lines if (text := line.strip()) and _counts(text)]
        for start in range(len(kept) - SHARED_LINES + 1):
            places[tuple(kept[start : start + SHARED_LINES])].append((name, start))
    pairs = {(found[0], found[1]) for found in places.values() if len(found) > 1}
    # A run of seven lines holds two of six: only its beginning counts.
    return sum(((one[0], one[1] - 1), (two[0], two[1] - 1)) not in pairs for one, two in pairs)


def _counts(text: str) -> bool:
    return len(text) > 3 and not text.startswith(("#", "import ", "from ", '"""'))


def _percentile(values: list[int], share: float) -> float:
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * share))])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
