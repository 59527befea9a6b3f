"""The runner of the suite counts right, and fails when something is wrong."""

from pathlib import Path

import pytest

from tools import run_tests, stages
from tools.install_peers import Machine, told
from tools.stage_progress import StageProgress
from tools.stages import Result, Stage

REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"/>
<testcase name="c"><failure message="x"/></testcase>
<testcase name="d"><error message="x"/></testcase>
<testcase name="e"><skipped message="no disk"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT, encoding="utf-8")
    result = stages.read_report(report)
    assert result.line == "2 passed, 2 failed, 1 skipped"
    assert result.skip_reasons == ["e: no disk"]
    assert len(result.durations) == 5


def test_every_folder_of_tests_is_in_a_stage() -> None:
    asked = {option for lane in run_tests.plan([]) for stage in lane for option in stage.options}
    folders = {
        f"tests/{path.name}"
        for path in (run_tests.ROOT / "tests").iterdir()
        if path.is_dir() and list(path.rglob("test_*.py"))
    }
    assert folders <= asked


def test_a_path_is_run_alone_and_other_arguments_go_to_every_stage() -> None:
    assert run_tests.plan(["tests/unit", "-x"]) == [[Stage("chosen", ("tests/unit", "-x"))]]
    assert all(stage.options[-1] == "-x" for lane in run_tests.plan(["-x"]) for stage in lane)


@pytest.mark.parametrize(
    ("result", "in_ci", "code"),
    [
        (Result(passed=1), "true", 0),
        (Result(passed=1, failed=1, exit_code=1), "", 1),
        (Result(passed=1, exit_code=3), "", 1),
        (Result(exit_code=run_tests.NOTHING_COLLECTED), "", 1),
        (Result(passed=1, skipped=1, skip_reasons=["e: no disk"]), "", 0),
        (Result(passed=1, skipped=1, skip_reasons=["e: no disk"]), "true", 1),
    ],
)
def test_the_exit_code_tells(
    result: Result,
    in_ci: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CI", in_ci)
    monkeypatch.setattr(run_tests, "run_lanes", lambda *_: [result])
    assert run_tests.main([]) == code
    assert capsys.readouterr().out.endswith(f"total: {result.line}\n")


def test_lanes_run_side_by_side_and_each_stage_is_told_of_once(tmp_path: Path) -> None:
    good, bad = tmp_path / "test_good.py", tmp_path / "test_bad.py"
    good.write_text("def test_good(): pass\n", encoding="utf-8")
    bad.write_text("def test_bad(): assert not 'seen'\n", encoding="utf-8")
    told: dict[str, Result] = {}
    lanes = [[Stage("a", (str(good),)), Stage("b", (str(bad),))], [Stage("c", (str(good),))]]
    results = stages.run_lanes(lanes, lambda stage, result: told.update({stage.name: result}))
    assert {name: result.line for name, result in told.items()} == {
        "a": "1 passed, 0 failed, 0 skipped",
        "b": "0 passed, 1 failed, 0 skipped",
        "c": "1 passed, 0 failed, 0 skipped",
    }
    assert "assert not 'seen'" in told["b"].output
    assert len(results) == 3


def test_progress_counts_a_test_once_and_names_failures(tmp_path: Path) -> None:
    path = tmp_path / "some.progress"
    progress = StageProgress(path)
    progress.pytest_xdist_node_collection_finished(["a", "b"])
    for when, outcome in [("setup", "passed"), ("call", "failed"), ("teardown", "passed")]:
        progress.pytest_runtest_logreport(_report(when, outcome))
    running = stages.RunningStage(Stage("some", ()), tmp_path, is_shown=False)
    assert running.progress == "some 1 of 2 (1 failed)"


def _report(when: str, outcome: str) -> pytest.TestReport:
    place = ("test_x.py", 1, "test_x")
    return pytest.TestReport("test_x", place, {}, outcome, None, when)  # type: ignore[arg-type]


def test_the_slowest_tests_of_all_stages_are_named() -> None:
    fast, slow = Result(durations=[(0.1, "fast")]), Result(durations=[(9.0, "slow")])
    assert run_tests.slowest([fast, slow]) == ["slow:    9.0 s  slow", "slow:    0.1 s  fast"]


def test_a_package_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    for program in ("h2load", "etcd"):
        (tmp_path / "usr/bin" / program).touch()
    assert told(Machine(tmp_path, can_install=False)) == [
        "postgresql is not installed (install it as root); its tests are skipped"
    ]
