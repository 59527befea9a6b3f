"""`danube journal`: check a stopped broker's journal, and give damaged bytes up."""

from typing import TYPE_CHECKING

import click

from pydanube.cli.exit_codes import FAILURES
from pydanube.cli.options import output_option
from pydanube.errors import Corruption

if TYPE_CHECKING:
    from pydanube.cli.journal_reports import JournalReport

data_dir_option = click.option(
    "--data-dir", required=True, help="Of a standalone broker, or the directory of the journal."
)


@click.group("journal")
def command() -> None:
    """Check a stopped broker's journal."""


@command.command()
@data_dir_option
@output_option
def verify(data_dir: str, output: str) -> None:
    """Read every byte of the journal and tell what is damaged; nothing is changed.

    Exit code 0: nothing is. Exit code 9: some bytes are, and what they held is lost.
    """
    from pydanube.cli.output import show

    report = _survey(data_dir)
    show(report, output)
    if report.damaged:
        raise click.exceptions.Exit(FAILURES[Corruption].exit_code)


@command.command()
@data_dir_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
def quarantine(data_dir: str, yes: bool, output: str) -> None:
    """Give the damaged bytes of the journal up, so that the broker starts again.

    Damaged files are copied to the directory `quarantine` first; every good message stays, and no
    offset is ever given twice.
    """
    from pydanube.cli.journal_reports import give_up_damage
    from pydanube.cli.output import show
    from pydanube.runtime.process import run

    report = _survey(data_dir)
    if report.damaged and not yes:
        show(report, "text")
        click.confirm("Give these bytes up?", abort=True)
    show(run(give_up_damage(report.directory)), output)


def _survey(data_dir: str) -> "JournalReport":
    from pydanube.cli.journal_reports import survey_journal
    from pydanube.runtime.process import run

    return run(survey_journal(data_dir))
