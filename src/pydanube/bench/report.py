"""Prints and keeps reports."""

import sys
from pathlib import Path

import msgspec

from pydanube.bench.results import HEADINGS, Report, cells_of, markdown

WIDTH_MIN = 200


def show(report: Report, output: str) -> None:
    """Print a report as text, markdown or JSON."""
    if output == "json":
        _print(_json(report).decode())
    elif output == "markdown":
        _print(markdown(report))
    else:
        _show_table(report)


def save(report: Report, path: Path) -> None:
    """Write a report as JSON."""
    path.write_bytes(_json(report) + b"\n")


def load(path: Path) -> Report:
    """Read what `save` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Report)


def _json(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=2)


def _show_table(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*HEADINGS, box=None, pad_edge=False)
    for row in report.rows:
        table.add_row(*cells_of(row))
    head = markdown(report).partition("\n\n")[0]
    _print(head + "\n")
    width = None if sys.stdout.isatty() else WIDTH_MIN
    Console(width=width, highlight=False).print(table)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
