"""`danube bench`: what this machine gets out of a broker, from one command."""

import tempfile
from pathlib import Path

import click

from pydanube.cli.options import output_option

_JOBS = ("publish", "backlog", "end_to_end", "one_in_flight", "latency", "publish_batches")


@click.command("bench")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="Of publishing, per job.",
)
@click.option("--rounds", type=click.IntRange(1, 100), default=1, show_default=True)
@click.option(
    "--job",
    "jobs",
    type=click.Choice(_JOBS),
    multiple=True,
    help="What to measure; may be given several times.  [default: everything]",
)
@click.option(
    "--payload-bytes",
    type=click.IntRange(64, 1_000_000),
    default=1024,
    show_default=True,
    help="Of one message.",
)
@click.option("--url", help="Of a broker that runs.  [default: a broker of the moment]")
@click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where the broker of the moment keeps its messages.  [default: the temporary directory]",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Draw the figures into this file, .svg or .png; needs the extra bench.",
)
@output_option
def command(
    seconds: float,
    rounds: int,
    jobs: tuple[str, ...],
    payload_bytes: int,
    url: str | None,
    data_dir: Path | None,
    plot: Path | None,
    output: str,
) -> None:
    """Measure a broker: rates, latencies, CPU per message.

    Publisher and consumer are processes of their own, as is the broker. Every message is
    acknowledged: what counts as published is on disk. The disk's own limit is measured first, since
    no broker is faster. Figures of a machine that does other work mean little.
    """
    from pydanube.bench.danube import DanubeSystem
    from pydanube.bench.plot import check_plotting, draw
    from pydanube.bench.progress import shown
    from pydanube.bench.report import show
    from pydanube.bench.rounds import Plan, run_rounds
    from pydanube.runtime.process import unwound_by_sigterm

    if "backlog" in jobs and "publish" not in jobs:
        raise click.UsageError("backlog consumes what publish leaves behind; give both jobs")
    if plot is not None:
        check_plotting(plot)
    plan = Plan(
        rounds=rounds,
        seconds=seconds,
        jobs=jobs or _JOBS,
        payload_bytes=payload_bytes,
        directory=data_dir or Path(tempfile.gettempdir()),
    )
    systems = [DanubeSystem(url)]
    with unwound_by_sigterm(), shown(plan.steps(systems)) as step:
        report = run_rounds(plan, systems, step)
    if plot is not None:
        draw(report, plot)
    show(report, output)
