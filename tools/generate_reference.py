"""Write the reference pages from the code they describe.

python tools/generate_reference.py          write docs/reference/ anew
python tools/generate_reference.py --check  fail if a page is not what would be written
"""

import argparse
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

import click
import msgspec
from msgspec import Meta, Struct

import pydanube
from pydanube.broker.config import BrokerConfig
from pydanube.broker.config_shape import section_of, variants
from pydanube.broker.config_text import ENVIRONMENT_PREFIX
from pydanube.cli.danube_iceberg import command as danube_iceberg_command
from pydanube.cli.exit_codes import FAILURES
from pydanube.cli.main import danube, danube_admin, danube_cli
from pydanube.errors import DanubeError
from pydanube.observability.metric_table import METRICS
from pydanube.observability.metrics import SUBSCRIPTION_SERIES_MAX, TOPIC_SERIES_MAX
from pydanube.spark.options import (
    READ_OPTIONS,
    SECURITY_OPTIONS,
    STORE_PREFIX,
    WRITE_OPTIONS,
    Option,
)
from pydanube.storage.config import Durable
from pydanube.wire.danube.status import status_of

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from tools import markdown  # noqa: E402  (found through the line above)

TARGET = REPOSITORY / "docs/reference"

NOTE = (
    "<!-- Written by tools/generate_reference.py; change the code, then run `make generate`. -->\n"
)


def main() -> int:
    """Write the pages, or check them; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    pages = generate()
    if parser.parse_args().check:
        return check(pages)
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (TARGET / name).write_text(text, encoding="utf-8")
    print(f"wrote {len(pages)} pages to {TARGET.relative_to(REPOSITORY)}")
    return 0


def check(pages: dict[str, str]) -> int:
    """Name every page that is missing, stale or left over; pages written by hand are their own."""
    found = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*.md")}
    present = {name: text for name, text in found.items() if name in pages or NOTE in text}
    stale = sorted(name for name in pages | present if pages.get(name) != present.get(name))
    for name in stale:
        print(f"docs/reference/{name} does not match the code")
    if stale:
        print("Write the pages anew with: make generate")
    return 1 if stale else 0


def generate() -> dict[str, str]:
    """Return the text of every page by its file name."""
    writers: dict[str, Callable[[], str]] = {
        "cli.md": cli_page,
        "configuration.md": configuration_page,
        "errors.md": errors_page,
        "metrics.md": metrics_page,
        "python.md": python_page,
        "spark.md": spark_page,
    }
    return {
        name: markdown.wrap(NOTE + "\n" + write().strip() + "\n") for name, write in writers.items()
    }


# Spark.


def spark_page() -> str:
    """Describe every option of the Spark data source."""
    return f"""# Options of `format("danube")`

See the [guide](../guides/spark.md). Names are taken in any case. An unknown name is refused with
the nearest known one. Sizes are written `64m`, `1g` or in bytes; lengths of time `500ms`, `30s`,
`15m`, `7d`.

Offsets by partition are JSON: `{{"/default/orders-part-0": 100, "/default/orders-part-1": 0}}`;
partitions that are left out begin at their earliest offset and end at their latest. An offset of
a checkpoint can be given as it is.

## Read

{_options_table(READ_OPTIONS)}
| `{STORE_PREFIX}*` | none | the segment store, named as in `storage.durable`: {_store_options()} |

## Write

{_options_table(WRITE_OPTIONS)}

## Security, of both

{_options_table(SECURITY_OPTIONS)}
"""


def _options_table(options: Iterable[Option]) -> str:
    lines = ["| Option | Default | Meaning |", "|---|---|---|"]
    lines += [f"| `{each.name}` | {each.default} | {each.meaning} |" for each in options]
    return "\n".join(lines)


def _store_options() -> str:
    return ", ".join(f"`{STORE_PREFIX}{name}`" for name in Durable.__struct_fields__)


# Configuration.


def configuration_page() -> str:
    """Describe every setting of the broker."""
    example = f"{ENVIRONMENT_PREFIX}BROKER__PORTS__CLIENT=6651"
    top = f"{ENVIRONMENT_PREFIX[:-1]}__CLUSTER_NAME=north"
    sections = "\n".join(_sections(BrokerConfig, ""))
    return f"""# Configuration

`danube broker --config-file FILE` reads YAML with the keys below, those of `danube_broker.yml`.
`danube broker --data-dir DIRECTORY` needs no file.

- An unknown key, a key given twice or a wrong type is refused, with its line and the nearest name.
- Only `true` and `false` are booleans; `yes`, `no`, `on` and `off` are texts.
- `${{NAME}}` in a value is replaced by the environment variable, `${{NAME:-default}}` by the
  default if the variable is unset or empty; `$${{` is a plain `${{`.
- An environment variable overrides a key: `{example}`. Two underscores part
  the names of sections; a key at the top is written `{top}`. Parts of a list
  are separated by commas.
- Flags of `danube broker` override both.
- The sections `cluster_name`, `broker`, `meta_store`, `bootstrap_namespaces`, `auth`, `storage` and
  `policies` must be there, if only as `auth: {{}}`.
- In `policies`, `0` means unlimited.
- What this version does not do is refused at start, with a sentence that says so: `auth.mode: tls`,
  `admin_tls: true`, a `storage.write_buffer`. Settings without effect are named in a warning.
- Older names are read: `storage.root`, `storage.cache_root`, `storage.wal.dir`,
  `storage.metadata_root`, `storage.object_store`, and in `storage.wal`: `cache_capacity`,
  `file_sync`, `retention`.
- Without credentials the broker listens on loopback addresses only, unless started with
  `--insecure`.

{sections}"""


def _sections(struct: type[Struct], above: str) -> Iterator[str]:
    rows = []
    deeper: list[tuple[str, type[Struct]]] = []
    for field in msgspec.structs.fields(struct):
        path = f"{above}{field.encode_name}"
        section = section_of(field.type)
        if section is not None:
            deeper.append((path, section))
        else:
            default = "required" if field.required else f"`{_yaml(field.default)}`"
            rows.append(
                f"| `{path}` | {_type_text(field.type)} | {default} | {_help(field.type)} |"
            )
    if above:
        yield f"## {above.rstrip('.')}\n\n{_first_sentences(struct)}\n"
    else:
        yield "## Top level\n"
    if rows:
        yield "| Key | Value | Default | Meaning |\n|---|---|---|---|"
        yield "\n".join(rows) + "\n"
    for path, section in deeper:
        yield from _sections(section, f"{path}.")


def _yaml(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(str, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type_text(kind: object) -> str:
    texts = [_plain_type(variant) for variant in variants(kind) if variant is not type(None)]
    return " or ".join(texts) + _limits(kind)


def _plain_type(kind: object) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) in (tuple, list):
        return "list"
    if get_origin(kind) is dict:
        return "map"
    return {int: "number", float: "number", str: "text", bool: "`true`, `false`"}[kind]  # type: ignore[index]  # The leaves of a configuration are these.


def _metas(kind: object) -> Iterator[Meta]:
    if get_origin(kind) is Annotated:
        inner, *metas = get_args(kind)
        yield from (meta for meta in metas if isinstance(meta, Meta))
        yield from _metas(inner)
    else:
        for variant in get_args(kind):
            yield from _metas(variant)


def _limits(kind: object) -> str:
    low = next((meta.ge for meta in _metas(kind) if meta.ge is not None), None)
    high = next((meta.le for meta in _metas(kind) if meta.le is not None), None)
    if low is not None and high is not None:
        return f", {low} to {high}"
    return f", at least {low}" if low is not None else ""


def _help(kind: object) -> str:
    return next((meta.description for meta in _metas(kind) if meta.description), "")


# Metrics.


def metrics_page() -> str:
    """Describe every metric."""
    rows = "\n".join(
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or '-'} | {metric.help} |"
        for metric in METRICS
    )
    return f"""# Metrics

Served as Prometheus text at `/metrics` on the port given by `broker.ports.prometheus` or
`--prom-exporter`; the same port answers `/healthz` and `/readyz`.

Every series carries the label `broker`, the broker's id. The names are those of Danube, so its
dashboards work; a metric marked as PyDanube's own has no counterpart there. Summaries have a sum
and a count, and no quantiles.

At most {TOPIC_SERIES_MAX:,} topics and {SUBSCRIPTION_SERIES_MAX:,} subscriptions have series of
their own, the earliest first. All others are added up under `topic="_other"` and
`subscription="_other"`.
The series of a topic or subscription end when it is deleted.

| Name | Kind | Labels | Meaning |
|---|---|---|---|
{rows}
"""


# Errors.


def errors_page() -> str:
    """Describe every error code."""
    rows = []
    for kind in sorted(error_kinds(), key=lambda kind: (_ancestry(kind), kind.code)):
        failure = next(FAILURES[parent] for parent in kind.__mro__ if parent in FAILURES)
        repeat = "yes" if kind.retryable else "no"
        rows.append(
            f'| <a id="{kind.code}"></a>`{kind.code}` | {_first_sentences(kind)} | {repeat} '
            f"| {status_of(kind).name} | {failure.exit_code} | {failure.next_step} |"
        )
    return f"""# Errors

Every failure has a code that never changes. Whether repeating the same request can help is part of
its kind. `danube` prints the code in brackets, `error[not_found]: …`, and leaves with the exit
code.

| Code | Meaning | Repeat | gRPC status | Exit code | Next step |
|---|---|---|---|---|---|
{chr(10).join(rows)}

`SendMessage` answers INVALID_ARGUMENT where the table says NOT_FOUND, PERMISSION_DENIED or
FAILED_PRECONDITION: stock clients would send again without end otherwise.
"""


def error_kinds() -> list[type[DanubeError]]:
    """Return one class for each code, the most general one that has it."""
    by_code: dict[str, type[DanubeError]] = {}
    for kind in all_error_classes():
        by_code.setdefault(kind.code, kind)
    return list(by_code.values())


def all_error_classes() -> Iterator[type[DanubeError]]:
    """Give every error class of the package, parents before children."""
    for module in pkgutil.walk_packages(pydanube.__path__, "pydanube."):
        if module.name.endswith(".errors"):
            importlib.import_module(module.name)
    waiting = [DanubeError]
    while waiting:
        kind = waiting.pop(0)
        if kind.__module__.startswith("pydanube."):
            yield kind
            waiting += kind.__subclasses__()


def _ancestry(kind: type) -> tuple[str, ...]:
    return tuple(parent.__name__ for parent in reversed(kind.__mro__))


# The command line.


def cli_page() -> str:
    """Show the help of every command."""
    text = """# Command line

`danube` is the one command. `danube-broker`, `danube-cli` and `danube-admin` are its parts under
the names of the Danube documentation, and `danube-iceberg` serves tables by the file that it knows.
"""
    for name, command in (
        ("danube", danube),
        ("danube-cli", danube_cli),
        ("danube-admin", danube_admin),
        ("danube-iceberg", danube_iceberg_command),
    ):
        depth = 1 if name == "danube" else 0
        text += "\n" + "\n".join(_command(command, name, None, depth))
    return text


def _command(
    command: click.Command, name: str, above: click.Context | None, depth: int
) -> Iterator[str]:
    """Show a command and, `depth` permitting, those below it; aliases are shown without them."""
    context = click.Context(command, info_name=name, parent=above, terminal_width=96)
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if depth and isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None and not found.hidden:
                yield from _command(found, inner, context, depth)


# Python.


def python_page() -> str:
    """Describe what `import pydanube` offers."""
    entries = []
    for name in sorted(pydanube.__all__, key=str.lower):
        thing = getattr(pydanube, name)
        if isinstance(thing, type) and issubclass(thing, DanubeError):
            continue
        if callable(thing):
            entries.append(_python_entry(name, thing))
    return f"""# Python

What `import pydanube` offers. Errors are on [their own page](errors.md); all of them can be
imported from `pydanube` and derive from `pydanube.DanubeError`.

{chr(10).join(entries)}"""


def _python_entry(name: str, thing: Callable[..., object]) -> str:
    text = f"## {name}\n"
    # Other classes are not made by hand: a client makes producers, a consumer makes messages.
    if not isinstance(thing, type) or thing in (pydanube.Broker, pydanube.RetryPolicy):
        text += f"\n```text\n{name}{_signature(thing)}\n```\n"
    text += f"\n{inspect.getdoc(thing)}\n"
    if not isinstance(thing, type):
        return text
    if issubclass(thing, Struct) and thing is not pydanube.RetryPolicy:
        fields = [f"{each.name}: {_type_name(each.type)}" for each in msgspec.structs.fields(thing)]
        text += "\n```text\n" + "\n".join(fields) + "\n```\n"
    for member, value in sorted(vars(thing).items()):
        if member.startswith("_"):
            continue
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(inner):
            prefix = "async " if _is_async(inner) else ""
            text += f"\n### {name}.{member}\n\n```text\n{prefix}{member}{_signature(inner)}\n```\n"
            text += f"\n{inspect.getdoc(inner)}\n"
        elif isinstance(value, property):
            text += f"\n### {name}.{member}\n\nA property. {inspect.getdoc(value)}\n"
    return text


def _type_name(kind: object) -> str:
    return _shortened(kind.__name__ if isinstance(kind, type) else str(kind))


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function)


def _signature(thing: Callable[..., object]) -> str:
    text = str(inspect.signature(thing)).replace("(self, ", "(").replace("(self)", "()")
    return _shortened(re.sub(r"(: |-> )'([^']+)'", r"\1\2", text))


def _shortened(text: str) -> str:
    return re.sub(r"\b(?:pydanube|collections|typing)\.(?:\w+\.)*", "", text)


def _first_sentences(thing: type) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


if __name__ == "__main__":
    sys.exit(main())
