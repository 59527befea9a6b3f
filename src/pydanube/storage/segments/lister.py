"""The process that lists objects: OpenDAL holds the interpreter lock while it waits for a list."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from pydanube.runtime.answering_process import answer_lines
from pydanube.storage.errors import StoreProblem
from pydanube.storage.segments.operators import (
    Patience,
    build_operator,
    first_words,
    operator_errors,
    problem_of,
)

IDLE_SECONDS_MAX: Final = 60.0


class Greeting(msgspec.Struct, frozen=True):
    """Where to list, and how patiently."""

    scheme: str
    options: Mapping[str, str]
    patience: Patience


class Listed(msgspec.Struct, frozen=True):
    """The answer to a directory: its keys, or why there are none."""

    keys: list[str] = []
    problem: StoreProblem | None = None
    detail: str = ""


def begin(greeting: bytes) -> Callable[[bytes], bytes]:
    """Return what answers directories with the objects directly below them."""
    where = msgspec.json.decode(greeting, type=Greeting)
    operator = build_operator(where.scheme, where.options, where.patience)

    def answer(line: bytes) -> bytes:
        directory = msgspec.json.decode(line, type=str)
        try:
            paths = [entry.path for entry in operator.list(directory)]
        except operator_errors() as error:
            return msgspec.json.encode(Listed([], problem_of(error), first_words(error)))
        return msgspec.json.encode(Listed(sorted(path for path in paths if path[-1:] != "/")))

    return answer


if __name__ == "__main__":
    answer_lines(begin, IDLE_SECONDS_MAX)
