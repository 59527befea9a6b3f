"""Draws a report; needs matplotlib, of the extra `bench`."""

from pathlib import Path

from pydanube.bench.jobs import JOBS
from pydanube.bench.results import Report, Row
from pydanube.errors import NotSupported

_BAR_INCHES, _WIDTH_INCHES = 0.35, 9.0


def check_plotting(path: Path) -> None:
    """Refuse a plot that could not be drawn, before anything is measured."""
    if path.suffix not in (".svg", ".png"):
        raise NotSupported(f"{path}: a plot is drawn as .svg or .png; name the file so")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise NotSupported(
            "plots need matplotlib: pip install 'pydanube[bench]', or leave --plot out"
        ) from None


def draw(report: Report, path: Path) -> None:
    """Draw the rates of every job, and the CPU time behind them, as bars."""
    check_plotting(path)
    from matplotlib.figure import Figure

    jobs = [job for job in JOBS if any(row.job == job.name for row in report.rows)]
    rows = {job.name: [row for row in report.rows if row.job == job.name] for job in jobs}
    heights = [len(rows[job.name]) + 1 for job in jobs]
    figure = Figure(figsize=(_WIDTH_INCHES, _BAR_INCHES * sum(heights) + 1), layout="constrained")
    axes = figure.subplots(len(jobs), 2, squeeze=False, height_ratios=heights)
    for job, (left, right) in zip(jobs, axes, strict=True):
        found = rows[job.name][::-1]
        names = [row.system for row in found]
        for axis, values in ((left, [_figure(row) for row in found]), (right, _cpu(found))):
            axis.bar_label(axis.barh(names, values), fmt="{:,.4g}", padding=2, fontsize=7)
            axis.margins(x=0.2)
            axis.tick_params(labelsize=7)
        unit = "acknowledged, p99 ms" if job.rate is not None else "msg/s"
        left.set_title(f"{job.title}: {unit}", fontsize=8, loc="left")
        right.set_title("CPU us per message, server and clients", fontsize=8, loc="left")
    figure.suptitle(f"{report.machine}; {report.rounds} rounds, medians", fontsize=8)
    figure.savefig(path)


def _figure(row: Row) -> float:
    paced = row.job == "latency" and row.acknowledged is not None
    return row.acknowledged.p99_ms if paced and row.acknowledged is not None else row.rate


def _cpu(rows: list[Row]) -> list[float]:
    return [row.server_cpu_us + row.client_cpu_us for row in rows]
