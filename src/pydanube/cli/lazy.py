"""Groups that import a command when it is used, so that `danube --help` answers at once."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click
from typing_extensions import override

from pydanube.cli.exit_codes import errors_become_exit_codes


class Found(NamedTuple):
    """Where a command lives, and the line that `--help` prints without loading it."""

    module: str
    summary: str
    attribute: str = "command"


class LazyGroup(click.Group):
    """Knows its commands by name and summary, and loads each when it is used."""

    def __init__(
        self,
        name: str,
        commands_at: Mapping[str, Found],
        *,
        help: str,
        epilog: str | None = None,
        params: list[click.Parameter] | None = None,
    ) -> None:
        super().__init__(name, help=help, epilog=epilog, params=params)
        self.commands_at = commands_at

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands_at)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self.commands_at.get(cmd_name)
        if found is None:
            return None
        command = getattr(import_module(found.module), found.attribute)
        assert isinstance(command, click.Command), f"{found.module} holds no command"
        return command

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, at.summary) for name, at in self.commands_at.items()])

    @override
    def invoke(self, ctx: click.Context) -> Any:  # As click declares it.
        with errors_become_exit_codes():
            return super().invoke(ctx)


class GuardedCommand(click.Command):
    """A command that is a program of its own, and so answers for its own errors."""

    @override
    def invoke(self, ctx: click.Context) -> Any:  # As click declares it.
        with errors_become_exit_codes():
            return super().invoke(ctx)
