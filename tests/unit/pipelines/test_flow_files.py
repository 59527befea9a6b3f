"""What lies beside a checkpoint: who runs the flow, what it was, and what it said last."""

import pytest

from pydanube.errors import Corruption, NotFound
from pydanube.pipelines.checks import Beginning, begin, find_refusal
from pydanube.pipelines.control import statuses, stop_flows
from pydanube.pipelines.documents import read_definition
from pydanube.pipelines.errors import FlowHeld, FlowRefused
from pydanube.pipelines.flow_files import FlowFiles
from pydanube.pipelines.graph import flows_of
from pydanube.pipelines.identity import identity_of
from pydanube.pipelines.reports import line_of, status_of

TEXT = """\
pipeline: p
checkpoints: /c
sources: {a: {topic: /default/a}}
sinks: [{name: s, from: a, format: danube, topic: /default/b}]
"""


@pytest.fixture
def files(tmp_path):
    return FlowFiles(f"file://{tmp_path}", "p", "s")


def flow(text: str = TEXT):
    return flows_of(read_definition(text, "p.yml", {})[0])[0]


def spark_begins(files, tmp_path, query: str) -> None:
    (tmp_path / "p" / "s").mkdir(parents=True, exist_ok=True)
    (tmp_path / "p" / "s" / "metadata").write_text(f'{{"id":"{query}"}}')


def test_one_process_holds_a_flow_and_a_second_one_is_told_who(files, tmp_path):
    files.hold()
    second = FlowFiles(str(tmp_path), "p", "s")
    with pytest.raises(FlowHeld, match=r"p/s is run by process \d+ on .*danube pipeline stop p"):
        second.hold()
    assert second.is_held
    files.let_go()
    assert not second.is_held
    second.hold()


def test_a_flow_goes_on_with_its_checkpoint(files, tmp_path):
    identity = identity_of(flow(), None)
    begin(flow(), files, identity, Beginning(), 0)
    spark_begins(files, tmp_path, "q1")
    assert begin(flow(), files, identity, Beginning(), 0).query == "q1"
    assert find_refusal(flow(), files, identity) is None


def test_another_source_is_refused_with_the_way_out(files, tmp_path):
    begin(flow(), files, identity_of(flow(), None), Beginning(), 0)
    spark_begins(files, tmp_path, "q1")
    changed = flow(TEXT.replace("/default/a", "/default/c"))
    with pytest.raises(FlowRefused, match=r"the sources were /default/a and are /default/c.*--new"):
        begin(changed, files, identity_of(changed, None), Beginning(), 0)
    begin(changed, files, identity_of(changed, None), Beginning(new_checkpoint=True), 77)
    assert (tmp_path / "p" / "s.before-77").is_dir()
    assert files.query_id() is None


def test_a_checkpoint_that_is_gone_is_refused(files, tmp_path):
    identity = identity_of(flow(), None)
    spark_begins(files, tmp_path, "q1")
    begin(flow(), files, identity, Beginning(), 0)
    (tmp_path / "p" / "s" / "metadata").unlink()
    with pytest.raises(FlowRefused, match="is gone, or another one, since query q1"):
        begin(flow(), files, identity, Beginning(), 0)


def test_to_go_on_from_a_topic_is_refused(files):
    how = Beginning(new_checkpoint=True, from_sink=True)
    with pytest.raises(FlowRefused, match="does not say how far the flow was"):
        begin(flow(), files, identity_of(flow(), None), how, 0)
    with pytest.raises(FlowRefused, match="add --new-checkpoint"):
        begin(flow(), files, identity_of(flow(), None), Beginning(from_sink=True), 0)


def test_versions_are_kept_for_the_last_batches(files):
    for number in range(30):
        files.note_static_versions(number, {"c": number})
    assert files.static_versions(29) == {"c": 29}
    assert files.static_versions(20) == {"c": 20}
    assert files.static_versions(19) is None


def test_a_flow_whose_process_is_gone_is_shown_as_stopped(files, tmp_path):
    status = status_of(flow())
    status.state = "RUNNING"
    files.hold()
    files.report(status)
    assert [each.state for each in statuses(str(tmp_path))] == ["RUNNING"]
    files.let_go()
    (found,) = stop_flows(str(tmp_path), "p")
    assert found.state == "STOPPED"
    assert "ended without a word" in found.error
    with pytest.raises(NotFound):
        statuses(str(tmp_path), "other")


def test_damage_is_named(files, tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "s.status.json").write_text("{")
    with pytest.raises(Corruption, match=r"s\.status\.json"):
        files.status()


def test_the_line_that_people_watch():
    status = status_of(flow())
    status.take(
        {
            "batchId": 412,
            "numInputRows": 5000,
            "processedRowsPerSecond": 18200.0,
            "batchDuration": 310,
            "sources": [
                {
                    "endOffset": {"v": 1, "grid": 1, "from": {}, "ids": {}, "next": {"a": 10}},
                    "latestOffset": {"v": 1, "grid": 1, "from": {}, "ids": {}, "next": {"a": 3130}},
                }
            ],
        }
    )
    status.dead_letters = 2
    assert line_of(status) == (
        "p/s                  RUNNING  batch 412  in 18.2k/s out 0/s  lag 3,120 rows 0.2 s  "
        "batch 310 ms  dead 2  → /default/b"
    )
