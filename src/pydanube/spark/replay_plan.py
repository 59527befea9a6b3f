"""How a replay is cut into commits, and what a table remembers of it. Pure."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from pydanube.errors import Conflict, InvalidRequest

COMMIT_ROWS = 50_000_000

Vector = dict[str, int]


class ReplayJob(Struct, frozen=True, kw_only=True):
    """One vector of offsets, fixed when the job begins, and in how many commits it is brought."""

    topic: str
    job: str
    ids: dict[str, str]
    """Of the physical topics, so that one that was created anew is noticed."""
    starts: Vector
    ends: Vector
    steps: int

    @property
    def rows(self) -> int:
        """How many offsets it covers."""
        return sum(end - self.starts[name] for name, end in self.ends.items())

    @property
    def application(self) -> str:
        """The name under which the table keeps the number of the last step."""
        return f"danube-replay/{self.job}"

    def bounds(self, step: int) -> tuple[Vector, Vector]:
        """Return where a step begins and ends: steps lie end to end and cover the job."""
        assert 0 <= step < self.steps
        return self._at(step), self._at(step + 1)

    def rows_until(self, step: int) -> int:
        """Return how many offsets lie before a step."""
        return sum(at - self.starts[name] for name, at in self._at(step).items())

    def _at(self, step: int) -> Vector:
        return {
            name: start + (self.ends[name] - start) * step // self.steps
            for name, start in self.starts.items()
        }


def plan_job(
    topic: str,
    job: str,
    ids: Mapping[str, str],
    bounds: Mapping[str, tuple[int, int]],
    commit_rows: int = COMMIT_ROWS,
) -> ReplayJob:
    """Return the job that brings a range, at most about `commit_rows` with each commit."""
    if commit_rows < 1:
        raise InvalidRequest("a commit has at least one row: commit_rows must be 1 or more")
    rows = sum(end - start for start, end in bounds.values())
    return ReplayJob(
        topic=topic,
        job=job,
        ids={name: ids[name] for name in bounds},
        starts={name: start for name, (start, _) in bounds.items()},
        ends={name: end for name, (_, end) in bounds.items()},
        steps=max(1, -(-rows // commit_rows)),
    )


def remember(job: ReplayJob) -> str:
    """Return what a commit says about the job it belongs to."""
    return msgspec.json.encode(job).decode()


def recall(text: str, topic: str, job: str) -> ReplayJob:
    """Read it again; Conflict if the name of the job stands for something else."""
    found = msgspec.json.decode(text, type=ReplayJob)
    if found.topic != topic:
        raise Conflict(
            f"the table holds a replay of {found.topic} under the name {job}; give this one "
            "another name (job)"
        )
    return found


def check_same_topics(job: ReplayJob, ids: Mapping[str, str]) -> None:
    """Refuse to go on with a topic that is another one by now."""
    for name, topic_id in job.ids.items():
        if ids.get(name) != topic_id:
            raise Conflict(
                f"topic {name} had id {topic_id} when the replay {job.job} began, and "
                f"{'is gone' if name not in ids else f'has {ids[name]}'} now: it was created anew. "
                "Replay it into another table, under another name (job)"
            )
