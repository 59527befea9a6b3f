"""How a replay is cut into commits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.errors import Conflict, InvalidRequest
from pydanube.spark.replay_plan import check_same_topics, plan_job, recall, remember

BOUNDS = st.dictionaries(
    st.sampled_from(["/d/a", "/d/b-part-0", "/d/b-part-1"]),
    st.tuples(st.integers(0, 1_000), st.integers(0, 1_000)).map(lambda b: (b[0], b[0] + b[1])),
    min_size=1,
)


def job(bounds: dict[str, tuple[int, int]], commit_rows: int = 10):
    return plan_job("/d/t", "j", dict.fromkeys(bounds, "1"), bounds, commit_rows)


@given(BOUNDS, st.integers(1, 500))
def test_steps_lie_end_to_end_and_cover_the_range_once(bounds, commit_rows):
    planned = job(bounds, commit_rows)
    at = {name: start for name, (start, _) in bounds.items()}
    for step in range(planned.steps):
        starts, ends = planned.bounds(step)
        assert starts == at
        assert all(ends[name] >= start for name, start in starts.items())
        rows = sum(ends[name] - start for name, start in starts.items())
        assert rows <= commit_rows + len(bounds)
        assert planned.rows_until(step + 1) - planned.rows_until(step) == rows
        at = ends
    assert at == {name: end for name, (_, end) in bounds.items()}
    assert planned.rows_until(planned.steps) == planned.rows
    assert planned.rows == sum(end - start for start, end in bounds.values())


def test_a_job_is_what_the_table_remembers():
    planned = job({"/d/a": (0, 95)})
    assert planned.steps == 10
    assert recall(remember(planned), "/d/t", "j") == planned
    with pytest.raises(Conflict, match="a replay of /d/t under the name j"):
        recall(remember(planned), "/d/other", "j")


def test_topics_that_are_not_the_same_any_more_are_refused():
    planned = job({"/d/a": (0, 95)})
    check_same_topics(planned, {"/d/a": "1", "/d/b": "7"})
    with pytest.raises(Conflict, match="has 2 now"):
        check_same_topics(planned, {"/d/a": "2"})
    with pytest.raises(Conflict, match="is gone now"):
        check_same_topics(planned, {})


def test_a_commit_has_rows():
    with pytest.raises(InvalidRequest, match="commit_rows"):
        job({"/d/a": (0, 5)}, 0)
