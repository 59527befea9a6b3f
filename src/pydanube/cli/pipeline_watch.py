"""`danube pipeline status --watch`: how flows are doing, again and again."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Table

    from pydanube.pipelines.reports import FlowStatus


def watch(
    look: "Callable[[], Sequence[FlowStatus]]",
    output: str,
    every_seconds: float,
    is_over: Callable[[], bool],
    wait: Callable[[float], None],
) -> None:
    """Show what `look` returns until it is over: in place on a terminal, else as lines of news."""
    if output == "json":
        _watch_lines(look, _json, every_seconds, is_over, wait)
    elif sys.stdout.isatty():
        _watch_in_place(look, every_seconds, is_over, wait)
    else:
        from pydanube.pipelines.reports import line_of

        _watch_lines(look, line_of, every_seconds, is_over, wait)


def _watch_lines(
    look: "Callable[[], Sequence[FlowStatus]]",
    line: "Callable[[FlowStatus], str]",
    every_seconds: float,
    is_over: Callable[[], bool],
    wait: Callable[[float], None],
) -> None:
    shown: dict[tuple[str, str], str] = {}
    while True:
        for each in look():
            text = line(each)
            if shown.get((each.pipeline, each.flow)) != text:
                shown[each.pipeline, each.flow] = text
                click.echo(text)
        if is_over():
            return
        wait(every_seconds)


def _watch_in_place(
    look: "Callable[[], Sequence[FlowStatus]]",
    every_seconds: float,
    is_over: Callable[[], bool],
    wait: Callable[[float], None],
) -> None:
    from rich.live import Live

    with Live(table_of(look()), auto_refresh=False) as live:
        while not is_over():
            wait(every_seconds)
            live.update(table_of(look()), refresh=True)


def table_of(statuses: "Sequence[FlowStatus]") -> "Table":
    """Return flows as a table for people: rates, lag, time of a batch."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("FLOW", "STATE"):
        table.add_column(name)
    for name in ("BATCH", "IN/S", "OUT/S", "LAG", "LAG S", "BATCH MS", "DEAD"):
        table.add_column(name, justify="right")
    table.add_column("TARGET", overflow="fold")
    for each in statuses:
        where = each.target if each.error is None else f"{each.target}: {each.error}"
        table.add_row(
            escape(f"{each.pipeline}/{each.flow}"),
            each.state,
            "-" if each.batch is None else str(each.batch),
            f"{each.in_per_second:,.0f}",
            f"{each.out_per_second:,.0f}",
            f"{each.lag:,}",
            f"{each.lag_seconds:.1f}",
            f"{each.batch_ms:,}",
            f"{each.dead_letters:,}",
            escape(where),
        )
    return table


def _json(status: "FlowStatus") -> str:
    import msgspec

    return msgspec.json.encode(status).decode()
