"""Upkeep of tables: small files joined, old snapshots forgotten, files of nobody removed.

Each change is one commit on top of the table that was loaded, and leaves the positions alone.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from pydanube.errors import Conflict
from pydanube.runtime.randomness import Randomness
from pydanube.tables.crew import InTools, Toolbox, Workers
from pydanube.tables.lake import DataFile, Joined, LakeSnapshot, LakeTable, StoredFile
from pydanube.tables.ranges import TableTools

TARGET_BYTES = 128 * 1024 * 1024
FILES_MIN = 2
LOST_RACES_MAX = 100

Which = Literal["main", "dead"]


class Upkeep(Struct, frozen=True, kw_only=True):
    """What was done."""

    table: str
    change: Literal["compacted", "expired", "vacuumed", "nothing"]
    files_before: int
    files_after: int
    removed: int = 0
    """Snapshots, or files."""


class JoinTask(Struct, frozen=True, kw_only=True):
    """Files that are to become one."""

    which: Which
    name: str
    paths: list[str]


Join = Callable[[Sequence[JoinTask]], Sequence[DataFile]]
"""Writes joined files, wherever."""


def compact(
    table: LakeTable,
    randomness: Randomness,
    *,
    which: Which = "main",
    join: Join,
    dry_run: bool = False,
) -> Upkeep:
    """Join small files, in the order of partition and offset.

    Exporters may go on meanwhile. Conflict: somebody else has replaced or deleted some of the
    files; nothing was changed.
    """
    snapshot = _loaded(table)
    files = snapshot.files()
    groups = plan_groups(files)
    after = len(files) - sum(len(group) - 1 for group in groups)
    if not groups or dry_run:
        return Upkeep(
            table=table.name, change="nothing", files_before=len(files), files_after=after
        )
    job = f"{randomness.below(2**128):032x}"
    tasks = [
        JoinTask(which=which, name=f"{job}-joined-{number:05d}", paths=group)
        for number, group in enumerate(groups)
    ]
    written = join(tasks)
    joined = [
        Joined(file=file, paths=task.paths) for task, file in zip(tasks, written, strict=True)
    ]
    _replace(table, joined, {"danube.upkeep": "compacted", "danube.job": job})
    return Upkeep(table=table.name, change="compacted", files_before=len(files), files_after=after)


def join_by(workers: Workers, toolbox: Toolbox) -> Join:
    """Return how workers join files."""

    def join(tasks: Sequence[JoinTask]) -> list[DataFile]:
        return workers.run(InTools(toolbox, join_files), tasks, DataFile)

    return join


def join_files(tools: TableTools, task: JoinTask) -> DataFile:
    """Join the files of one task; done by a worker."""
    snapshot = _loaded(tools.main if task.which == "main" else tools.dead)
    return snapshot.join(f"{task.name}-{tools.randomness.below(2**32):08x}", task.paths)


def plan_groups(files: Sequence[StoredFile]) -> list[list[str]]:
    """Put small files of one partition together until they are large enough. Pure."""
    by_partition: dict[str, list[StoredFile]] = {}
    for file in files:
        if file.plain and file.bytes < TARGET_BYTES // 2:
            by_partition.setdefault(file.partition, []).append(file)
    groups: list[list[str]] = []
    for _, members in sorted(by_partition.items()):
        size = 0
        groups.append([])
        for file in sorted(members, key=lambda each: each.path):
            if size + file.bytes > TARGET_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(file.path)
            size += file.bytes
    return [group for group in groups if len(group) >= FILES_MIN]


def _replace(table: LakeTable, joined: Sequence[Joined], summary: dict[str, str]) -> None:
    """Commit joined files, on top of whatever exporters add meanwhile."""
    wanted = {path for each in joined for path in each.paths}
    for _ in range(LOST_RACES_MAX):
        snapshot = _loaded(table)
        if not wanted <= {each.path for each in snapshot.files() if each.plain}:
            break
        if snapshot.replace(joined, summary):
            return
    _loaded(table).delete([each.file for each in joined])
    raise Conflict(
        f"table {table.name}: files that were to be joined were changed meanwhile, or commits "
        "came too fast; nothing was changed, run it again"
    )


def _loaded(table: LakeTable) -> LakeSnapshot:
    snapshot = table.load()
    if snapshot is None:
        raise Conflict(f"there is no table {table.name} yet")
    return snapshot
