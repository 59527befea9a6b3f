"""`danube bench`, short, with a broker, a publisher and a consumer in processes of their own."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pydanube.bench.jobs import JOBS
from pydanube.bench.results import Report

DANUBE = Path(sys.executable).parent / "danube"


@pytest.mark.e2e
@pytest.mark.slow
def test_every_job_runs_and_loses_nothing(tmp_path: Path) -> None:
    plot = tmp_path / "figures.svg"
    done = subprocess.run(
        [DANUBE, "bench", "--seconds", "0.2", "--output", "json", "--plot", plot],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout, type=Report)
    assert [row.job for row in report.rows] == [job.name for job in JOBS]
    assert all(row.rate > 0 and row.server_cpu_us + row.client_cpu_us > 0 for row in report.rows)
    found = {row.job: row for row in report.rows}
    assert found["latency"].received is not None
    assert found["one_in_flight"].acknowledged is not None
    assert "round 1: danube, publish" in done.stderr
    assert "<svg" in plot.read_text()


def test_wrong_uses_are_refused_before_anything_is_measured() -> None:
    for arguments, said in (
        (["--job", "backlog"], "give both jobs"),
        (["--plot", "figures.pdf"], ".svg or .png"),
        (["--seconds", "0"], "seconds"),
    ):
        done = subprocess.run(
            [DANUBE, "bench", *arguments], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
