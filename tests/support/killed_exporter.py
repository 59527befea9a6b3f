"""Exporters that are killed, as by a power cut, at a chosen step; any number of them.

    python -m tests.support.killed_exporter URL CATALOGS.json

Each line on standard input starts exporters of one table and waits until all have ended: a topic,
a step, and how many. A line on standard output tells how each ended: "killed" or "done". The steps:

    before write, after write, before commit, after commit      of the rows
    after dead letters                                          those are committed, the rows not
    before progress                                             rows are committed, the cursor not
    before version, before hint                                 of a table without a catalogue

Exporters are forks of this process, which starts no threads, so that starting one costs little.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyiceberg.catalog.sql
import pyiceberg.io.pyarrow  # noqa: F401  Here, so that forks need not.

from pydanube.runtime import blocking
from pydanube.tables import delta, iceberg, numbered_files, service
from pydanube.tables.book import TableBook
from pydanube.tables.catalog_settings import CatalogSetting
from pydanube.tables.opening import surroundings_of
from pydanube.tables.service import RunningTable

STEPS = (
    "before write",
    "after write",
    "before commit",
    "after dead letters",
    "after commit",
    "before progress",
)
BARE_STEPS = ("before version", "before hint")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def plant(step: str) -> None:
    """Change this process so that it dies at a step."""
    for kind in (delta.DeltaSnapshot, iceberg.IcebergSnapshot):
        write, commit = kind.write, kind.commit

        def watched_write(self: Any, name: str, rows: Any, write: Any = write) -> Any:
            is_rows = not name.endswith("-dead")
            if is_rows and step == "before write":
                die()
            files = write(self, name, rows)
            if is_rows and step == "after write":
                die()
            return files

        def watched_commit(self: Any, wanted: Any, commit: Any = commit) -> bool:
            is_rows = "danube.range" in wanted.summary
            if is_rows and step == "before commit":
                die()
            done = commit(self, wanted)
            if step == ("after commit" if is_rows else "after dead letters"):
                die()
            return done

        kind.write, kind.commit = watched_write, watched_commit  # type: ignore[method-assign]
    if step == "before version":
        blocking.os.link = lambda *_: die()  # type: ignore[assignment]
    if step == "before hint":
        numbered_files.DirectoryFiles.replace = lambda *_: die()  # type: ignore[method-assign]
    if step == "before progress":
        service.Cursors.advance = lambda self, positions: die()  # type: ignore[method-assign]


def export(url: str, catalogs: dict[str, CatalogSetting], topic: str, step: str) -> None:
    plant(step)
    with surroundings_of(url, catalogs) as given:
        RunningTable(topic, TableBook(given.access).get(topic), given).drain()


def main(url: str, path: str) -> None:
    found = json.loads(Path(path).read_text())
    catalogs = msgspec.convert(found, dict[str, CatalogSetting])
    for line in sys.stdin:
        topic, step, count = line.strip().split("|")
        children = []
        for _ in range(int(count)):
            child = os.fork()
            if child == 0:
                export(url, catalogs, topic, step)
                os._exit(0)
            children.append(child)
        ends = []
        for child in children:
            _, status = os.waitpid(child, 0)
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            ends.append("killed" if killed else "done" if status == 0 else f"failed {status}")
        print(json.dumps(ends), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
