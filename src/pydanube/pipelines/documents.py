"""Pipeline files: YAML with lines kept, parameters filled in, every mistake found. Pure.

The environment is handed in: `${env:NAME}` is the only way from it into a definition.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin

import msgspec
import yaml
from msgspec import Struct

from pydanube.pipelines.definitions import PipelineDefinition, Scalar
from pydanube.pipelines.errors import InvalidPipeline, Problem
from pydanube.pipelines.places import Path, Places, key_of
from pydanube.pipelines.sinks.catalog import kind_names

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_WHOLE_NUMBER = re.compile(r"[-+]?\d+", re.ASCII)
_DECIMAL = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?", re.ASCII)
_PATH_PART = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[(\.\.\.)\]")
_TEXT_BYTES_MAX = 2**20
_DEPTH_MAX = 20


def read_definition(
    text: str,
    file: str,
    environment: Mapping[str, str],
    parameters: Mapping[str, Scalar] | None = None,
) -> tuple[PipelineDefinition, Places]:
    """Return the definition that a file holds; InvalidPipeline names every mistake in it.

    `parameters` win over those of the file. How the parts fit together is not looked at here.
    """
    places = Places(file)
    values = _values(text, places)
    problems: list[Problem] = []
    filled = _filled(values, dict(parameters or {}), environment, places, problems)
    problems += _mistakes(PipelineDefinition, filled, (), places)
    problems += _unknown_sinks(filled, places)
    if problems:
        raise InvalidPipeline(problems)
    try:
        return msgspec.convert(filled, PipelineDefinition), places
    except msgspec.ValidationError as error:
        found = places.problem(*_located(str(error), PipelineDefinition, filled, ()))
        raise InvalidPipeline([found]) from None


def _values(text: str, places: Places) -> dict[str, Any]:
    if len(text) > _TEXT_BYTES_MAX:
        raise InvalidPipeline([places.problem((), "is larger than 1 MiB, which no pipeline is")])
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else None
        message = f"is not YAML: {error.problem or error.context}; check quotes and indentation"
        raise InvalidPipeline(
            [Problem(file=places.file, line=line, key="the file", message=message)]
        ) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidPipeline([places.problem((), f"is not YAML: {error}")]) from None
    problems: list[Problem] = []
    found = None if node is None else _value(node, (), places, problems)
    if not problems and not isinstance(found, dict):
        problems.append(places.problem((), "must hold keys such as pipeline, sources and sinks"))
    if problems:
        raise InvalidPipeline(problems)
    return cast(dict[str, Any], found)


def _value(node: yaml.Node, path: Path, places: Places, problems: list[Problem]) -> Any:  # noqa: ANN401
    places.lines.setdefault(path, node.start_mark.line + 1)
    if len(path) > _DEPTH_MAX:
        problems.append(places.problem(path, "is nested too deeply"))
        return None
    match node:
        case yaml.MappingNode():
            return _mapping(node, path, places, problems)
        case yaml.SequenceNode():
            return [
                _value(item, (*path, number), places, problems)
                for number, item in enumerate(node.value)
            ]
        case _:
            return _scalar(cast(yaml.ScalarNode, node))


def _mapping(
    node: yaml.MappingNode, path: Path, places: Places, problems: list[Problem]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        below = (*path, key)
        line = key_node.start_mark.line + 1
        if key in found:
            problems.append(
                Problem(
                    file=places.file,
                    line=line,
                    key=key_of(below),
                    message=f"stands twice, first in line {places.lines[below]}; keep one of them",
                )
            )
            continue
        places.lines[below] = line
        found[key] = _value(value_node, below, places, problems)
    return found


def _scalar(node: yaml.ScalarNode) -> Scalar | None:
    """Return numbers, true, false and null as such; everything else is text."""
    text = node.value
    if node.style is not None:
        return str(text)
    match text:
        case "true":
            return True
        case "false":
            return False
        case "" | "null" | "~":
            return None
        case _:
            return _number(str(text))


def _number(text: str) -> Scalar:
    if _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    return text


def _filled(
    values: dict[str, Any],
    given: dict[str, Scalar],
    environment: Mapping[str, str],
    places: Places,
    problems: list[Problem],
) -> dict[str, Any]:
    declared = values.get("parameters")
    declared = dict(declared) if isinstance(declared, dict) else {}
    for name in given.keys() - declared.keys():
        problems.append(
            places.problem(("parameters",), f"{name} is given but not declared; declare a default")
        )
    fill = _Filling(environment, {}, places, problems)
    known = {name: fill.value(value, ("parameters", name)) for name, value in declared.items()}
    fill = _Filling(environment, {**known, **given}, places, problems)
    rest = {key: fill.value(value, (key,)) for key, value in values.items() if key != "parameters"}
    if "parameters" in values:
        kept = values["parameters"]
        rest["parameters"] = fill.parameters if isinstance(kept, dict) else kept
    return rest


class _Filling:
    """Replaces `${name}` and `${env:NAME}`; `$${` is a plain `${`."""

    def __init__(
        self,
        environment: Mapping[str, str],
        parameters: Mapping[str, Scalar],
        places: Places,
        problems: list[Problem],
    ) -> None:
        self.parameters = dict(parameters)
        self._environment = environment
        self._places = places
        self._problems = problems

    def value(self, value: Any, path: Path) -> Any:  # noqa: ANN401  Whatever YAML holds.
        match value:
            case dict():
                return {key: self.value(each, (*path, key)) for key, each in value.items()}
            case list():
                return [self.value(each, (*path, number)) for number, each in enumerate(value)]
            case str():
                return self._text(value, path)
            case _:
                return value

    def _text(self, text: str, path: Path) -> Scalar:
        whole = _REFERENCE.fullmatch(text)
        if whole is not None and whole[1] is not None:
            return self._referred(whole[1].strip(), path)  # It keeps its type.
        return _REFERENCE.sub(lambda match: self._part(match, path), text)

    def _part(self, match: re.Match[str], path: Path) -> str:
        if match[1] is None:
            return "${"
        found = self._referred(match[1].strip(), path)
        return str(found).lower() if isinstance(found, bool) else str(found)

    def _referred(self, name: str, path: Path) -> Scalar:
        if name.startswith("env:"):
            variable = name.removeprefix("env:")
            if variable in self._environment:
                return self._environment[variable]
            self._problem(path, f"the environment variable {variable} is not set; export it")
        elif name in self.parameters:
            return self.parameters[name]
        elif path[:1] == ("parameters",):
            self._problem(path, f"${{{name}}}: a parameter is a value or ${{env:NAME}}")
        else:
            hint = _nearest(name, self.parameters)
            self._problem(
                path,
                f"there is no parameter {name}{hint}; declare it under parameters, or write "
                f"${{env:{name}}} for the environment",
            )
        return ""

    def _problem(self, path: Path, message: str) -> None:
        self._problems.append(self._places.problem(path, message))


def _unknown_sinks(values: Mapping[str, Any], places: Places) -> Iterator[Problem]:
    """Yield the formats of sinks that nobody has brought along."""
    known = kind_names()
    sinks = values.get("sinks")
    for number, sink in enumerate(sinks if isinstance(sinks, list) else ()):
        given = sink.get("format") if isinstance(sink, dict) else None
        if isinstance(given, str) and given not in known:
            words = f"{given!r} is none of {', '.join(known)}{_nearest(given, known)}"
            yield places.problem(("sinks", number, "format"), words)


def _mistakes(kind: Any, value: object, path: Path, places: Places) -> Iterator[Problem]:  # noqa: ANN401
    """Yield every way in which a value is not of a type; Structs are looked into."""
    kind = _without_none(kind, value)
    if isinstance(kind, type) and issubclass(kind, Struct):
        if not isinstance(value, dict):
            names = ", ".join(each.encode_name for each in msgspec.structs.fields(kind)[:3])
            yield places.problem(path, f"must hold keys such as {names}")
            return
        yield from _mistakes_in_struct(kind, value, path, places)
        return
    arguments = get_args(kind)
    if get_origin(kind) is tuple and _holds_structs(arguments[0]) and isinstance(value, list):
        for number, each in enumerate(value):
            yield from _mistakes(arguments[0], each, (*path, number), places)
        if value:
            return
    if get_origin(kind) is dict and _holds_structs(arguments[1]) and isinstance(value, dict):
        for name, each in value.items():
            yield from _mistakes(arguments[0], name, (*path, name), places)
            yield from _mistakes(arguments[1], each, (*path, name), places)
        return
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        yield places.problem(*_located(str(error), kind, value, path))


def _mistakes_in_struct(
    kind: type[Struct], value: dict[str, Any], path: Path, places: Places
) -> Iterator[Problem]:
    fields = {each.encode_name: each for each in msgspec.structs.fields(kind)}
    for key in value:
        if key not in fields:
            known = ", ".join(fields)
            hint = _nearest(key, fields) or f"; there are {known}"
            yield places.problem((*path, key), f"there is no such key{hint}")
    for name, each in fields.items():
        if name in value:
            yield from _mistakes(each.type, value[name], (*path, name), places)
        elif each.required:
            yield places.problem(path, f"the key {name} is missing; add it")


def _without_none(kind: Any, value: object) -> Any:  # noqa: ANN401  Types are values here.
    if get_origin(kind) not in (Union, UnionType):
        return _bare(kind)
    others = [each for each in get_args(kind) if each is not type(None)]
    return _bare(others[0]) if len(others) == 1 and value is not None else kind


def _bare(kind: Any) -> Any:  # noqa: ANN401
    """Return a type without its limits, if those are of a collection of Structs."""
    inner = getattr(kind, "__origin__", None)
    if hasattr(kind, "__metadata__") and get_origin(inner) is tuple:
        return inner if _holds_structs(get_args(inner)[0]) else kind
    return kind


def _holds_structs(kind: Any) -> bool:  # noqa: ANN401
    return isinstance(kind, type) and issubclass(kind, Struct)


def _located(message: str, kind: Any, value: object, path: Path) -> tuple[Path, str]:  # noqa: ANN401
    """Return where below `path` msgspec found something, and the words for it."""
    words, _, where = message.partition(" - at `$")
    below: list[str | int] = []
    for name, number, _ in _PATH_PART.findall(where.rstrip("`")):
        below.append(int(number) if number else name)
    words = words[0].lower() + words[1:]
    choices = [str(each) for each in get_args(kind)]
    if "enum value" in words and isinstance(value, str):
        words = f"{value!r} is none of {', '.join(choices)}{_nearest(value, choices)}"
    elif "matching regex" in words:
        words = f"{value!r} is no name; use letters, digits and underscores, a letter first"
    return (*path, *below), words


def _nearest(name: str, known: Mapping[str, object] | list[str]) -> str:
    found = get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else ""
