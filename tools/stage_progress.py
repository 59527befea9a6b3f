"""A pytest plugin that keeps one line in a file: how many tests are done, failed and there at all.

`tools/run_tests.py` runs stages side by side and reads that line. The file's name comes in the
environment, so a run of pytest by hand does not notice the plugin.
"""

import os
from pathlib import Path

import pytest

VARIABLE = "PYDANUBE_STAGE_PROGRESS"


class StageProgress:
    """Counts tests as they end, in the process that hears of all of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._total = 0
        self._done = 0
        self._failed: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Know how many tests there are, where no workers share them."""
        self._expect(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Know how many tests there are, from the first worker that knows."""
        self._expect(len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test when its last phase has ended."""
        if report.failed:
            self._failed.add(report.nodeid)
        if report.when == "teardown":
            self._done += 1
            self._write()

    def _expect(self, total: int) -> None:
        self._total = max(self._total, total)
        self._write()

    def _write(self) -> None:
        # Replaced as a whole: the reader never meets half a line.
        fresh = self._path.with_suffix(".fresh")
        fresh.write_text(f"{self._done} {self._total} {len(self._failed)}", encoding="utf-8")
        fresh.replace(self._path)


def pytest_configure(config: pytest.Config) -> None:
    """Count where a stage asks for it; a worker leaves that to its controller."""
    path = os.environ.get(VARIABLE)
    if path and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(StageProgress(Path(path)), "stage-progress")
