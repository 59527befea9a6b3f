"""Which changes of a definition a checkpoint survives."""

import pytest

from pydanube.pipelines.documents import read_definition
from pydanube.pipelines.graph import flows_of
from pydanube.pipelines.identity import changes, identity_of

TEXT = """\
pipeline: p
checkpoints: /c
sources:
  a: {topic: /default/a, watermark: {column: publish_time, delay: 1 minute}}
  b: {topic: /default/b}
steps:
  - {name: u, sql: "SELECT * FROM a UNION ALL SELECT * FROM b"}
  - {name: g, sql: "SELECT key, sum(n) n FROM u WHERE n > 1 GROUP BY key, window(t, '1 minute')"}
sinks: [{name: s, from: g, format: noop}]
"""


def identity(text: str = TEXT, partitions: int = 4):
    (flow,) = flows_of(read_definition(text, "p.yml", {})[0])
    return identity_of(flow, partitions)


@pytest.mark.parametrize(
    ("old", "new"),
    [("n > 1", "n > 2"), ("sum(n)", "max(n)"), ("format: noop", "format: console"),
     ("GROUP BY key", "group  by  KEY"), ("delay: 1 minute", "delay: 2 minutes")],
)  # fmt: skip
def test_filters_projections_and_sinks_may_change(old, new):
    assert old in TEXT
    assert changes(identity(), identity(TEXT.replace(old, new))) == []
    assert identity().hash == identity(TEXT.replace(old, new)).hash


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("/default/b", "/default/c", "the sources were /default/a, /default/b and are"),
        ("SELECT * FROM a UNION ALL", "", "the sources were"),
        ("GROUP BY key,", "GROUP BY", "the keys were"),
        (", watermark: {column: publish_time, delay: 1 minute}", "", "the watermark of a was by"),
    ],
)
def test_sources_keys_and_watermarks_must_stay(old, new, expected):
    assert old in TEXT
    (said,) = changes(identity(), identity(TEXT.replace(old, new)))
    assert expected in said


def test_state_is_kept_by_the_number_of_shuffle_partitions():
    assert "shuffle.partitions was 4 and is 8" in changes(identity(), identity(partitions=8))[0]


def test_keys_behind_a_function_count_and_what_follows_a_subquery_does_not():
    late = TEXT.replace("key, window(t, '1 minute')", "window(t, '1 minute'), key")
    assert changes(identity(late), identity(late.replace("), key", "), other")))
    inner = TEXT.replace(
        "SELECT key, sum(n) n FROM u WHERE n > 1 GROUP BY key, window(t, '1 minute')",
        "SELECT key FROM (SELECT key FROM u GROUP BY lower(key)) WHERE key > 1",
    )
    assert changes(identity(inner), identity(inner.replace("key > 1", "key > 2"))) == []
