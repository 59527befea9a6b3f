"""What goes wrong with pipelines, beside what Spark and brokers refuse."""

from collections.abc import Sequence

from msgspec import Struct
from typing_extensions import override

from pydanube.errors import Conflict, DanubeError, InvalidRequest


class Problem(Struct, frozen=True, kw_only=True):
    """One mistake in a definition: where it stands, what is wrong, what to write instead."""

    key: str
    message: str
    file: str | None = None
    line: int | None = None

    @override
    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        return f"{place}: {self.key}: {self.message}" if place else f"{self.key}: {self.message}"


class InvalidPipeline(InvalidRequest):
    """A definition has mistakes; all of them are named, and nothing was started."""

    code = "invalid_pipeline"

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class FlowRefused(Conflict):
    """A flow cannot go on from what its checkpoint or its sink holds."""

    code = "pipeline_flow_refused"


class FlowHeld(Conflict):
    """Another process runs this flow."""

    code = "pipeline_flow_held"


class ExpectationFailed(InvalidRequest):
    """Rows break an expectation whose rule is to fail."""

    code = "pipeline_expectation_failed"


class StepFailed(InvalidRequest):
    """The user's function of a step raised something; a running flow tries it again."""

    code = "pipeline_step_failed"


class FlowFailed(DanubeError):
    """A flow has failed for good; restarts did not help, or could not."""

    code = "pipeline_flow_failed"


class StopAsked(Exception):
    """A batch does not begin, or does not end, because its flow is to stop.

    By these words Spark knows that the error of a query that it stops is none.
    """

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling a batch: "
            "java.lang.InterruptedException"
        )
