"""The pure part of a benchmark: percentiles, medians, ratios, tables."""

import pytest

from pydanube.bench.jobs import JOBS
from pydanube.bench.results import (
    HEADINGS,
    Latencies,
    Measurement,
    Report,
    SystemNotes,
    cells_of,
    latencies_of,
    markdown,
    merged,
    percentile,
    rows_of,
)


def notes(name: str) -> SystemNotes:
    return SystemNotes(name=name, title=f"{name} 1.0", fsync="before reply", batching={})


def measured(
    system: str, job: str, rate: float, *, cpu: float = 10.0, p99_ms: float | None = None
) -> Measurement:
    latencies = None
    if p99_ms is not None:
        latencies = Latencies(p50_ms=p99_ms / 2, p99_ms=p99_ms, p999_ms=p99_ms * 2)
    return Measurement(
        system=system,
        job=job,
        round=0,
        messages=int(rate * 2),
        seconds=2.0,
        server_cpu_us=cpu / 2,
        client_cpu_us=cpu / 2,
        acknowledged=latencies,
    )


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 50), (0.99, 99), (0.999, 100), (1.0, 100), (0.0, 1)]
)
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == expected


def test_nothing_measured_has_no_latencies() -> None:
    assert latencies_of([]) is None
    assert percentile([], 0.5) == 0
    assert latencies_of([0.001, 0.003]) == Latencies(p50_ms=1.0, p99_ms=3.0, p999_ms=3.0)


def test_rounds_count_by_their_median_and_ratios_say_how_much_better_the_first_is() -> None:
    found = [measured("ours", "publish", rate) for rate in (100, 900, 300)]
    found += [measured("theirs", "publish", rate, cpu=40.0) for rate in (100, 90, 110)]
    ours, theirs = rows_of(found, [notes("ours"), notes("theirs")], 1024)
    assert (ours.rate, theirs.rate) == (300, 100)
    assert (ours.ratio, ours.cpu_ratio) == (None, None)
    assert (theirs.ratio, theirs.cpu_ratio) == (3.0, 4.0)


def test_where_the_rate_is_given_latencies_are_compared() -> None:
    found = [
        measured("ours", "latency", 1000, p99_ms=2.0),
        measured("theirs", "latency", 1000, p99_ms=5.0),
    ]
    _, theirs = rows_of(found, [notes("ours"), notes("theirs")], 1024)
    assert theirs.ratio == 2.5


def test_rows_follow_the_jobs_and_leave_out_what_was_not_measured() -> None:
    systems = [notes("ours"), notes("theirs")]
    found = [measured(each.name, job.name, 10) for each in systems for job in reversed(JOBS)]
    found = [each for each in found if (each.system, each.job) != ("theirs", "publish_batches")]
    rows = rows_of(found, systems, 1024)
    assert [row.job for row in rows[::2]] == [job.name for job in JOBS]
    assert [row.system for row in rows[:2]] == ["ours", "theirs"]
    assert len(rows) == 2 * len(JOBS) - 1


def test_every_row_says_payload_window_batching_and_fsync() -> None:
    report = Report(
        machine="a machine",
        disk="a disk",
        rounds=1,
        seconds=2.0,
        systems=[notes("ours")],
        absent=["theirs: not measured, it is not installed"],
        rows=rows_of([measured("ours", "publish", 1234, p99_ms=2.0)], [notes("ours")], 1024),
        measurements=[],
    )
    (row,) = report.rows
    assert len(cells_of(row)) == len(HEADINGS)
    page = markdown(report)
    assert "| publish | ours | 1,234 |" in page
    assert "1,024 B, 256 messages, one by one | before reply |" in page
    assert "theirs: not measured" in page
    assert "1.00 / 2.00" in page


def test_several_runs_count_as_one_with_more_rounds() -> None:
    def report(rate: float) -> Report:
        found = [measured("ours", "publish", rate)]
        return Report(
            machine="a machine",
            disk="a disk",
            rounds=1,
            seconds=2.0,
            systems=[notes("ours")],
            absent=[],
            rows=rows_of(found, [notes("ours")], 512),
            measurements=found,
        )

    whole = merged([report(100), report(900), report(300)])
    assert (whole.rounds, [each.round for each in whole.measurements]) == (3, [0, 1, 2])
    assert [(row.rate, row.payload_bytes) for row in whole.rows] == [(300, 512)]
