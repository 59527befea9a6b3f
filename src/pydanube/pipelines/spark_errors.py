"""What errors that come through Spark say, and whether another try can help."""

import re

from pydanube.errors import DanubeError
from pydanube.pipelines.errors import StepFailed

# The last call of a trace, the lines that show its text, and what was raised there.
_PLACE_IN_TRACE = re.compile(
    r'^ +File "([^"]+)", line (\d+), in .+\n(?: (?! *File ").*\n)*((?:\S.*(?:\n|$))+)', re.MULTILINE
)


def words_of(error: Exception) -> str:
    """Return what an error says, without the traces and the plan that Spark adds to it."""
    text = str(error).partition("\n\nJVM stacktrace")[0].partition(";\n")[0].strip()
    own = [line for line in text.splitlines() if line.startswith("pydanube.")]
    if own:
        return own[-1].partition(": ")[2]
    places = _PLACE_IN_TRACE.findall(text)
    if not places:
        return text
    file, line, raised = places[-1]
    return f"{raised.strip()} ({file}:{line})"


def is_hopeless(error: Exception) -> bool:
    """Tell whether starting again cannot help."""
    from pyspark.errors import AnalysisException

    if isinstance(error, StepFailed):
        return False  # Whatever its function asks may answer next time.
    if isinstance(error, DanubeError):
        return not error.retryable
    return isinstance(error, AnalysisException)
