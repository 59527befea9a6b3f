"""Write pydanube.sync, the blocking twin of the client, from the asynchronous classes.

python tools/generate_sync.py          write src/pydanube/sync.py anew
python tools/generate_sync.py --check  fail if it is not what would be written

Signatures and docstrings are copied, so that editors and type checkers see real ones; every body is
one call. What is written by hand lives in client/blocking.py.
"""

import argparse
import ast
import builtins
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCES = REPOSITORY / "src"
TARGET = SOURCES / "pydanube/sync.py"

TWINS = {
    "Client": "pydanube.client.client",
    "Producer": "pydanube.client.producer",
    "Consumer": "pydanube.client.consumer",
    "Reader": "pydanube.client.reader",
    "Schemas": "pydanube.client.schemas",
}
BASES = {"Client": "BlockingClient", "Reader": "Blocking", "Schemas": "Blocking"}
LEFT_OUT = {
    "Consumer.open",
    "Consumer.displace",
    "Consumer.is_namesake_of",
    "Client.close",
    "Client.brokers",
    "Schemas.calls",
    "Consumer.receive_nowait",
}
"""Called by the client alone; written by hand."""
DEFAULT_TYPE = "type: type[Value] = bytes,"
DEFAULT_TYPE_NOTE = "# type: ignore[assignment]  # Value's own default."

HEAD = '''\
# Written by tools/generate_sync.py; change the asynchronous classes, then run `make generate`.
"""The client for programs without an event loop: every call waits for its outcome.

with pydanube.sync.connect("http://127.0.0.1:6650") as client:
    with client.producer("/default/orders") as producer:
        producer.send(b"hello")
    with client.consumer("/default/orders", "billing") as consumer:
        for message in consumer:
            consumer.ack(message)

It is the asynchronous client on a thread of its own, so it can also be used where an event loop is
running, as in notebooks.
"""

from __future__ import annotations
'''


class Source:
    """One module: its classes and functions, and where the names in it come from."""

    def __init__(self, module: str) -> None:
        path = SOURCES / (module.replace(".", "/") + ".py")
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.names: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self.names[alias.asname or alias.name] = (node.module, alias.name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    self.names[alias.asname or alias.name] = (alias.name, "")
        for node in self.tree.body:
            for name in _defined_by(node):
                self.names[name] = (module, name)

    def definition(self, name: str) -> ast.ClassDef | ast.FunctionDef:
        """Return a class or a function of the module."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return node
        raise LookupError(name)


class Writer:
    """Collects the text and the imports that it needs."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.for_types: set[tuple[str, str]] = set()
        self.at_run_time: set[tuple[str, str]] = set()

    def need(self, source: Source, node: ast.AST, needed: set[tuple[str, str]]) -> None:
        """Take note of the names in an annotation or a default."""
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                try:
                    self.need(source, ast.parse(each.value, mode="eval").body, needed)
                except SyntaxError:
                    continue
            elif isinstance(each, ast.Name) and each.id not in TWINS:
                if each.id in source.names:
                    needed.add(source.names[each.id])
                elif not hasattr(builtins, each.id):
                    raise LookupError(f"no idea where {each.id} comes from")


def main() -> int:
    """Write the module, or check it; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    text = formatted(generate())
    name = TARGET.relative_to(REPOSITORY)
    if not parser.parse_args().check:
        TARGET.write_text(text, encoding="utf-8")
        print(f"wrote {name}")
        return 0
    if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
        print(f"{name} does not match the client; write it anew with: make generate")
        return 1
    return 0


def generate() -> str:
    """Return the text of the module, not formatted yet."""
    writer = Writer()
    for name, module in TWINS.items():
        source = Source(module)
        node = source.definition(name)
        assert isinstance(node, ast.ClassDef)
        writer.text += _class(writer, source, node)
        if name != "Client":
            writer.for_types.add((module, f"{name} as Async{name}"))
    writer.text += _connect(writer)
    writer.at_run_time |= {
        ("pydanube.client.blocking", base)
        for base in ("Blocking", "BlockingClient", "BlockingContext", "connect_blocking")
    }
    exported = ", ".join(f'"{name}"' for name in (*sorted(TWINS), "connect"))
    return "\n".join([HEAD, *_imports(writer), f"\n__all__ = [{exported}]\n", *writer.text])


def _imports(writer: Writer) -> Iterator[str]:
    yield "from typing import TYPE_CHECKING, Any, Generic"
    yield "from typing_extensions import override"
    for module, name in sorted(writer.at_run_time):
        yield f"from {module} import {name}"
    yield "if TYPE_CHECKING:"
    yield "    from collections.abc import Iterator"
    yield "    from concurrent.futures import Future"
    for module, name in sorted(writer.for_types - writer.at_run_time):
        if module == "typing" and name in ("Any", "Generic"):
            continue
        yield f"    from {module} import {name}" if name else f"    import {module} as pa"


def _class(writer: Writer, source: Source, node: ast.ClassDef) -> Iterator[str]:
    generic = any("Generic[Value]" in ast.unparse(base) for base in node.bases)
    inner = f"Async{node.name}[Value]" if generic else f"Async{node.name}"
    base = BASES.get(node.name, "BlockingContext")
    bases = base if base == "BlockingClient" else f'{base}["{inner}"]'
    if generic:
        bases += ", Generic[Value]"
        writer.at_run_time.add(source.names["Value"])
    first = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", "\n    ")
    yield f"class {node.name}({bases}):"
    yield f'    """{first}\n\n    The blocking twin of `pydanube.{node.name}`.\n    """'
    if node.name == "Client":
        yield from (
            "    @override\n    def close(self) -> None:",
            f'        """{_doc_of(node, "close")}"""',
        )
        yield "        self._close()"
    yield from _attributes(writer, source, node)
    for member in node.body:
        if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if member.name == "__anext__":
            yield from _iteration(writer, source, member)
        if not member.name.startswith("_") and f"{node.name}.{member.name}" not in LEFT_OUT:
            yield from _method(writer, source, member)


def _attributes(writer: Writer, source: Source, node: ast.ClassDef) -> Iterator[str]:
    """Give what the constructor makes public as properties."""
    constructor = next(
        each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    )
    arguments = (*constructor.args.args, *constructor.args.kwonlyargs)
    given = {each.arg: each.annotation for each in arguments}
    for statement in constructor.body:
        if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1):
            continue
        target, value = statement.targets[0], statement.value
        if not isinstance(target, ast.Attribute) or target.attr.startswith("_"):
            continue
        if isinstance(value, ast.Call) and ast.unparse(value.func) in TWINS:
            kind = ast.unparse(value.func)
            yield f"    @property\n    def {target.attr}(self) -> {kind}:"
            yield f'        """Its {target.attr}."""'
            yield f"        return {kind}(self._inner.{target.attr}, self._thread)"
            continue
        if isinstance(value, ast.Constant):
            kind = type(value.value).__name__
        else:
            assert isinstance(value, ast.Name), f"{node.name}.{target.attr} has no plain type"
            annotation = given[value.id]
            assert annotation is not None
            writer.need(source, annotation, writer.for_types)
            kind = ast.unparse(annotation)
        doc = "Tell whether it is closed." if target.attr == "closed" else f"Its {target.attr}."
        yield f"    @property\n    def {target.attr}(self) -> {kind}:"
        yield f'        """{doc}"""\n        return self._inner.{target.attr}'


def _method(
    writer: Writer, source: Source, member: ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[str]:
    assert member.returns is not None
    _need_signature(writer, source, member)
    call = f"self._inner.{member.name}({_passed(member.args)})"
    returns = _unquoted(member.returns)
    if any(isinstance(each, ast.Name) and each.id == "property" for each in member.decorator_list):
        yield "    @property"
        body = f"return self._inner.{member.name}"
    elif isinstance(member, ast.FunctionDef) and returns.startswith("Opening["):
        returns = returns.removeprefix("Opening[").removesuffix("]")
        body = f"return self._open({call}, {returns})"
    elif isinstance(member, ast.FunctionDef) and not returns.startswith("asyncio.Future["):
        assert returns in TWINS, f"{member.name} is neither asynchronous nor opens anything"
        body = f"return {returns}({call}, self._thread)"
    elif returns.startswith("asyncio.Future["):
        returns = returns.removeprefix("asyncio.")
        body = f"return self._begin(lambda: {call})"
    elif returns.startswith("AsyncIterator["):
        returns = returns.removeprefix("Async")
        body = f"return self._iterate({call})"
    elif member.name == "close":
        yield "    @override"
        body = f"self._end({call})"
    else:
        body = f"self._wait({call})" if returns == "None" else f"return self._wait({call})"
    yield f"    def {member.name}({_parameters(member.args)}) -> {returns}:"
    yield f'        """{_docstring(member)}"""\n        {body}'


def _iteration(writer: Writer, source: Source, member: ast.AST) -> Iterator[str]:
    assert isinstance(member, ast.AsyncFunctionDef)
    assert member.returns is not None
    _need_signature(writer, source, member)
    item = _unquoted(member.returns)
    yield f"    def __iter__(self) -> Iterator[{item}]:\n        return self"
    yield f"    def __next__(self) -> {item}:\n        try:"
    yield "            return self._wait(self._inner.__anext__())"
    yield "        except StopAsyncIteration:\n            raise StopIteration from None"


def _connect(writer: Writer) -> Iterator[str]:
    source = Source(TWINS["Client"])
    node = source.definition("connect")
    assert isinstance(node, ast.FunctionDef)
    _need_signature(writer, source, node)
    writer.at_run_time.add((TWINS["Client"], "connect as connect_async"))
    yield f"def connect({_parameters(node.args)}) -> Client:"
    yield f'    """{ast.get_docstring(node)}"""'
    yield f"    return connect_blocking(connect_async({_passed(node.args)}), Client)"


def _need_signature(
    writer: Writer, source: Source, member: ast.FunctionDef | ast.AsyncFunctionDef
) -> None:
    arguments = (*member.args.args, *member.args.kwonlyargs)
    annotations = [each.annotation for each in arguments if each.annotation is not None]
    assert member.returns is not None
    for node in (*annotations, member.returns):
        writer.need(source, node, writer.for_types)
    for default in (*member.args.defaults, *member.args.kw_defaults):
        if default is not None and not isinstance(default, ast.Constant):
            writer.need(source, default, writer.at_run_time)
    writer.for_types = {
        (module, name)
        for module, name in writer.for_types
        if name not in ("AsyncIterator", "Opening") and module != "asyncio"
    }


def _parameters(arguments: ast.arguments) -> str:
    for each in (*arguments.args, *arguments.kwonlyargs):
        if each.annotation is not None:
            each.annotation = ast.parse(_unquoted(each.annotation), mode="eval").body
    return ast.unparse(arguments)


def _passed(arguments: ast.arguments) -> str:
    assert arguments.vararg is None, "name every argument"
    assert arguments.kwarg is None, "name every argument"
    positional = [each.arg for each in arguments.args if each.arg != "self"]
    return ", ".join([*positional, *(f"{each.arg}={each.arg}" for each in arguments.kwonlyargs)])


def _docstring(member: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    lines = (ast.get_docstring(member) or "").splitlines()
    text = "\n".join(["", *(f"        {line}" if line else "" for line in lines)]).lstrip()
    return text if len(lines) == 1 else f"{text}\n        "


def _doc_of(node: ast.ClassDef, name: str) -> str:
    for member in node.body:
        if isinstance(member, ast.AsyncFunctionDef) and member.name == name:
            return ast.get_docstring(member) or ""
    raise LookupError(name)


def _unquoted(annotation: ast.expr) -> str:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return ast.unparse(annotation)


def _defined_by(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def formatted(text: str) -> str:
    """Return the text as the house formats it."""
    ruff = [str(Path(sys.executable).with_name("ruff"))]
    for step in (["check", "--fix-only", "--select", "I"], ["format"]):
        command = [*ruff, *step, "--quiet", "--stdin-filename", str(TARGET), "-"]
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, check=True, cwd=REPOSITORY
        )
        text = done.stdout
    return text.replace(DEFAULT_TYPE, f"{DEFAULT_TYPE}  {DEFAULT_TYPE_NOTE}")


if __name__ == "__main__":
    sys.exit(main())
