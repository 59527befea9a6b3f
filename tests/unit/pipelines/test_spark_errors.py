import pytest
from pyspark.errors import AnalysisException

from pydanube.errors import InvalidRequest, Unavailable
from pydanube.pipelines.errors import StepFailed
from pydanube.pipelines.spark_errors import is_hopeless, words_of

TRACE = """\
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/shop/steps.py", line 9, in score
    return divided(batch)
  File "/shop/sums.py", line 3, in divided
    return 1 / 0
           ~~^~~
ZeroDivisionError: division by zero
"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("disk full", "disk full"),
        ("no column n; line 1 pos 7;\n'Project ['n]\n+- Relation", "no column n; line 1 pos 7"),
        ("gone\n\nJVM stacktrace:\n at org.apache", "gone"),
        (TRACE, "ZeroDivisionError: division by zero (/shop/sums.py:3)"),
        (
            f"{TRACE}in two lines\n SQLSTATE: 38000\n\tat org.apache",
            "ZeroDivisionError: division by zero\nin two lines (/shop/sums.py:3)",
        ),
        (
            f"{TRACE}\nDuring handling of this\n\n{TRACE.replace('ZeroDivision', 'Other')}",
            "OtherError: division by zero (/shop/sums.py:3)",
        ),
        (
            f"{TRACE}pydanube.errors.NotFound: there is no topic /default/a\n\tat org.apache",
            "there is no topic /default/a",
        ),
    ],
)
def test_an_error_is_told_without_what_spark_adds(said: str, words: str) -> None:
    assert words_of(RuntimeError(said)) == words


@pytest.mark.parametrize(
    ("error", "hopeless"),
    [
        (InvalidRequest("wrong"), True),
        (Unavailable("away"), False),
        (StepFailed("rates do not answer"), False),
        (AnalysisException("no column"), True),
        (OSError("disk full"), False),
    ],
)
def test_what_another_try_cannot_help_is_known(error: Exception, hopeless: bool) -> None:
    assert is_hopeless(error) == hopeless
