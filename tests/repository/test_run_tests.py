"""The runner of the suite counts right, and fails when something is wrong."""

from pathlib import Path

import pytest

from tools import run_tests
from tools.run_tests import Result

REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"/>
<testcase name="c"><failure message="x"/></testcase>
<testcase name="d"><error message="x"/></testcase>
<testcase name="e"><skipped message="no disk"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT, encoding="utf-8")
    result = run_tests.read_report(report)
    assert result.line == "2 passed, 2 failed, 1 skipped"
    assert result.skip_reasons == ["e: no disk"]


def test_every_folder_of_tests_is_in_a_stage() -> None:
    asked = {option for _, options in run_tests.plan([]) for option in options}
    folders = {
        f"tests/{path.name}"
        for path in (run_tests.ROOT / "tests").iterdir()
        if path.is_dir() and list(path.rglob("test_*.py"))
    }
    assert folders <= asked


def test_a_path_is_run_alone_and_other_arguments_go_to_every_stage() -> None:
    assert run_tests.plan(["tests/unit", "-x"]) == [("chosen", ["tests/unit", "-x"])]
    assert all(options[-1] == "-x" for _, options in run_tests.plan(["-x"]))


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
    monkeypatch.setattr(run_tests, "plan", lambda _: [("only", [])])
    monkeypatch.setattr(run_tests, "run_stage", lambda *_: result)
    assert run_tests.main([]) == code
    assert capsys.readouterr().out.endswith(f"total: {result.line}\n")
