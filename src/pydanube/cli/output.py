"""Prints results: JSON for programs, tables for people. Loaded by commands, never by --help."""

import sys
from collections.abc import Sequence

import click
import msgspec
from msgspec import Struct

TEXT_COLUMNS_MAX = 10_000


def show(result: object, output: str) -> None:
    """Print a Struct, or a list of Structs or strings."""
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
        return
    match result:
        case list():
            _show_list(result)
        case dict():
            _table(None, [[str(name), _cell(value)] for name, value in result.items()])
        case Struct():
            _show_struct(result)
        case _:
            click.echo(visible(str(result)))


def visible(text: str) -> str:
    """Return text with its control characters written out: names and payloads are strangers'."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def _show_list(items: Sequence[object]) -> None:
    rows = [item for item in items if isinstance(item, Struct)]
    if not items:
        click.echo("(none)", err=True)
    elif rows:
        columns = rows[0].__struct_fields__
        _table(columns, [[_cell(getattr(row, name)) for name in columns] for row in rows])
    else:
        for item in items:
            click.echo(visible(str(item)))


def _show_struct(result: Struct) -> None:
    lists: list[tuple[str, Sequence[object]]] = []
    lines: list[list[str]] = []
    for name, value in _flat(result):
        if isinstance(value, list) and any(isinstance(item, Struct) for item in value):
            lists.append((name, value))
        else:
            lines.append([name, _cell(value)])
    _table(None, lines)
    for name, items in lists:
        click.echo(f"\n{name}:")
        _show_list(items)


def _flat(result: Struct) -> list[tuple[str, object]]:
    """Return a Struct's fields, and those of the Structs and dicts in it, one after another."""
    fields: list[tuple[str, object]] = []
    for name in result.__struct_fields__:
        value = getattr(result, name)
        match value:
            case Struct():
                fields += _flat(value)
            case dict():
                fields += value.items()
            case _:
                fields.append((name, value))
    return fields


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3f}"
        case list() | tuple():
            return ", ".join(visible(str(item)) for item in value) or "-"
        case _:
            return visible(str(value))


def _table(columns: Sequence[str] | None, rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # Not str: rich would read [brackets] in a name as markup.

    table = Table(*(columns or ("", "")), box=None, pad_edge=False, show_header=columns is not None)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    # A pipe has no width: lines stay whole, and end where they end, for grep and awk.
    console = Console(width=TEXT_COLUMNS_MAX, highlight=False)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())
