"""Topics in Spark: the data source `danube`, sessions that suit it, history as a frame.

The names below are the public ones; each is loaded when it is used. They need the extra `spark`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydanube.spark.compacting import compact
    from pydanube.spark.frames import history, read, read_stream, write_stream
    from pydanube.spark.progress import ProgressMetrics, ProgressMirror
    from pydanube.spark.replaying import replay
    from pydanube.spark.sessions import session
    from pydanube.spark.typed_values import decode
    from pydanube.spark.verifying import verify
    from pydanube.tables.union_read import table

__all__ = [
    "ProgressMetrics",
    "ProgressMirror",
    "compact",
    "decode",
    "history",
    "read",
    "read_stream",
    "replay",
    "session",
    "table",
    "verify",
    "write_stream",
]

_FOUND_IN = {
    "ProgressMetrics": "pydanube.spark.progress",
    "ProgressMirror": "pydanube.spark.progress",
    "compact": "pydanube.spark.compacting",
    "decode": "pydanube.spark.typed_values",
    "replay": "pydanube.spark.replaying",
    "session": "pydanube.spark.sessions",
    "verify": "pydanube.spark.verifying",
    "table": "pydanube.tables.union_read",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'pydanube.spark' has no attribute {name!r}")
    return getattr(import_module(_FOUND_IN.get(name, "pydanube.spark.frames")), name)


def __dir__() -> list[str]:
    return __all__
