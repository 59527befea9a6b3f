"""Reads settings from YAML text, environment variables and flags into one checked Struct.

Later sources win. Every problem is reported at once, each with where it was written and what was
probably meant. Nothing here reads a file or `os.environ`.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

import msgspec
import yaml
from msgspec import Struct

from pydanube.broker.config_shape import (
    Annotation,
    Path,
    all_paths,
    dotted,
    is_list,
    section_of,
    type_at,
    variants,
    without_limits,
)
from pydanube.broker.errors import InvalidConfig

ENVIRONMENT_PREFIX = "DANUBE_"
DEPTH_MAX = 16

Config = TypeVar("Config", bound=Struct)

_SUBSTITUTION = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>[^}]*))?\}")
_YAML_TAG = "tag:yaml.org,2002:"


class Setting(Struct, frozen=True):
    """One value, and where it was written."""

    value: object
    origin: str


class SettingsReader(Generic[Config]):
    """Gathers settings by their paths, then builds the Struct they describe.

    Add sources in the order of their strength, weakest first; then `build` once.
    """

    def __init__(self, into: type[Config]) -> None:
        self._into = into
        self._settings: dict[Path, Setting] = {}
        self._problems: list[str] = []

    def add_text(self, text: str, environment: Mapping[str, str]) -> None:
        """Add a YAML document, with `${NAME}` and `${NAME:-default}` filled in."""
        for path, node, origin in _leaves(_compose(text), ()):
            if path in self._settings:
                self._problems.append(f"{origin}: {dotted(path)} is given twice")
            self._settings[path] = Setting(self._yaml_value(path, node, environment), origin)

    def add_environment(self, environment: Mapping[str, str]) -> None:
        """Add the settings among the environment variables.

        A variable is a setting when it starts with DANUBE_ and has a double underscore; those
        part the names of sections, as in DANUBE_BROKER__PORTS__CLIENT and DANUBE__CLUSTER_NAME.
        Other variables belong to somebody else, such as the DANUBE_ADMIN_ENDPOINT of the tools.
        """
        for name in sorted(environment):
            rest = name.removeprefix(ENVIRONMENT_PREFIX)
            if rest == name or "__" not in name:
                continue
            path = tuple(part.lower() for part in rest.removeprefix("_").split("__"))
            self._settings[path] = Setting(self._from_text(path, environment[name]), name)

    def add_values(self, values: Mapping[str, object], origin: str) -> None:
        """Add values by their dotted names, such as broker.ports.client."""
        for name, value in values.items():
            self._settings[tuple(name.split("."))] = Setting(value, origin)

    def value(self, name: str) -> object:
        """Return what was given for a dotted name so far; None if nothing was."""
        setting = self._settings.get(tuple(name.split(".")))
        return None if setting is None else setting.value

    def move(self, old: Path, new: Path) -> None:
        """Bring what an older file keeps at `old`, a setting or a section, to where it belongs."""
        for path in [path for path in self._settings if path[: len(old)] == old]:
            target = new + path[len(old) :]
            setting = self._settings.pop(path)
            if target in self._settings:
                self._problems.append(
                    f"{setting.origin}: {dotted(path)} is an older name of {dotted(target)}; "
                    "keep one of them"
                )
            self._settings[target] = setting

    def replace(self, section: Path, old: object, new: object) -> None:
        """Put `new` in the place of every `old` in a section."""
        for path, setting in self._settings.items():
            if path[:-1] == section and setting.value == old and type(setting.value) is type(old):
                self._settings[path] = Setting(new, setting.origin)

    def build(self) -> Config:
        """Check every setting and build the Struct, or raise InvalidConfig with all problems."""
        for path, setting in self._settings.items():
            problem = self._problem_with(path, setting.value)
            if problem:
                self._problems.append(f"{setting.origin}: {problem}")
        self._problems += self._missing(self._into, ())
        if not self._problems:
            try:
                return msgspec.convert(self._nested(), self._into)
            except msgspec.ValidationError as error:
                # Each value is right by itself; what can still fail is a rule between settings.
                self._problems.append(str(error).partition(" - at ")[0])
        raise InvalidConfig(_report(self._problems))

    def _yaml_value(self, path: Path, node: yaml.Node, environment: Mapping[str, str]) -> object:
        match node:
            case yaml.SequenceNode():
                return [self._plain(path, item, environment) for item in node.value]
            case yaml.ScalarNode() if "${" in node.value:
                return self._from_text(path, str(self._plain(path, node, environment)))
            case yaml.MappingNode():
                return None  # An empty section, the same as nothing after the colon.
            case _:
                return self._plain(path, node, environment)

    def _plain(self, path: Path, node: yaml.Node, environment: Mapping[str, str]) -> object:
        if not isinstance(node, yaml.ScalarNode):
            raise InvalidConfig(f"{_line(node)}: {dotted(path)} may only list plain values")
        if "${" not in node.value:
            return _scalar(node)

        def fill(match: re.Match[str]) -> str:
            name, default = match["name"], match["default"]
            if name is None:
                return "${"  # Written $${.
            if default is not None:
                return environment.get(name) or str(default)
            if name not in environment:
                self._problems.append(
                    f"{_line(node)}: {dotted(path)} needs the environment variable {name}, which "
                    f"is not set; ${{{name}:-something}} gives a default"
                )
            return environment.get(name, "")

        return _SUBSTITUTION.sub(fill, str(node.value))

    def _from_text(self, path: Path, text: str) -> object:
        """Read a text as the setting's type wants it; wrong texts stay, to be reported later."""
        kind = type_at(self._into, path)
        if kind is None or section_of(kind) is not None:
            return text
        if is_list(kind):
            return [part.strip() for part in text.split(",") if part.strip()]
        try:
            # Without limits: a number out of range is reported as such, not as a text.
            return msgspec.convert(text, without_limits(kind), strict=False)
        except msgspec.ValidationError:
            return text

    def _problem_with(self, path: Path, value: object) -> str | None:
        kind = type_at(self._into, path)
        if kind is None:
            return self._unknown(path)
        if section_of(kind) is not None:
            return None if value is None else f"{dotted(path)} must be a section of settings"
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            return f"{dotted(path)}: {str(error).replace('`', '')}{_boolean_hint(kind, value)}"
        return None

    def _unknown(self, path: Path) -> str:
        known = list(all_paths(self._into))
        siblings = {p[-1]: p for p in known if p[:-1] == path[:-1]}
        near = get_close_matches(path[-1], siblings, n=1)
        # Right name, wrong section: `ports` at the top instead of below `broker`.
        elsewhere = [p for p in known if p[-1] == path[-1]]
        likely = siblings[near[0]] if near else elsewhere[0] if elsewhere else None
        hint = f"; did you mean {dotted(likely)}?" if likely else ""
        return f"{dotted(path)} is not a setting{hint}"

    def _missing(self, struct: type[Struct], path: Path) -> Iterator[str]:
        for field in msgspec.structs.fields(struct):
            inner = (*path, field.encode_name)
            given = any(p[: len(inner)] == inner for p in self._settings)
            if field.required and not given:
                yield f"{dotted(inner)} is required"
            section = section_of(field.type)
            if section is not None and given:
                yield from self._missing(section, inner)

    def _nested(self) -> dict[str, Any]:
        root: dict[str, Any] = {}
        for path in sorted(self._settings):  # A section's own entry comes before those below it.
            place = root
            for name in path[:-1]:
                place = place.setdefault(name, {})
            kind = type_at(self._into, path)
            empty_section = kind is not None and section_of(kind) is not None
            place[path[-1]] = {} if empty_section else self._settings[path].value
        return root


class _Loader(yaml.CSafeLoader):
    """Knows null, true, false and plain numbers; all else is text.

    YAML 1.1 reads `no` as false, `010` as 8, `66:50` as 4010 and `2026-01-01` as a date.
    """


_PLAIN = {
    "null": (re.compile(r"(?:~|null|)\Z"), ["~", "n", ""]),
    "bool": (re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    "int": (re.compile(r"[-+]?(?:0|[1-9][0-9_]{0,30})\Z"), list("-+0123456789")),
    "float": (re.compile(r"[-+]?[0-9]{1,30}\.[0-9]{1,30}\Z"), list("-+0123456789")),
}
_Loader.yaml_implicit_resolvers = {}
for _kind, (_pattern, _first_characters) in _PLAIN.items():
    _Loader.add_implicit_resolver(_YAML_TAG + _kind, _pattern, _first_characters)


def _compose(text: str) -> yaml.MappingNode:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InvalidConfig(f"{line}the configuration is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InvalidConfig(f"the configuration is not YAML: {error}") from None
    finally:
        loader.dispose()
    if node is None:
        return yaml.MappingNode(_YAML_TAG + "map", [])
    if not isinstance(node, yaml.MappingNode):
        raise InvalidConfig("the configuration must consist of settings, such as cluster_name: …")
    return node


def _leaves(node: yaml.MappingNode, path: Path) -> Iterator[tuple[Path, yaml.Node, str]]:
    # A node may contain itself by an anchor, so the depth is bounded.
    if len(path) > DEPTH_MAX:
        raise InvalidConfig(f"{_line(node)}: sections are nested deeper than {DEPTH_MAX}")
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise InvalidConfig(f"{_line(key)}: the name of a setting must be a word")
        inner = (*path, str(key.value))
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _leaves(value, inner)
        else:
            yield inner, value, _line(key)


def _scalar(node: yaml.ScalarNode) -> object:
    text, kind = str(node.value), node.tag.removeprefix(_YAML_TAG)
    if kind == "str":
        return text
    # A tag may be written by hand, as in !!int x.
    if kind not in _PLAIN or not _PLAIN[kind][0].match(text):
        raise InvalidConfig(f"{_line(node)}: the tag {node.tag} is not supported; remove it")
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    return int(text.replace("_", "")) if kind == "int" else float(text)


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}" if node.start_mark else "the configuration"


def _boolean_hint(kind: Annotation, value: object) -> str:
    return "; write true or false" if bool in variants(kind) and isinstance(value, str) else ""


def _report(problems: list[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return "\n".join([f"the configuration has {len(problems)} problems:", *problems])
