"""Rows that are counted while they are written."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def counted(frame: "DataFrame") -> "tuple[DataFrame, Callable[[], int]]":
    """Return the frame to write, and what tells the number of rows once it is written."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    observation = Observation()
    watched = frame.observe(observation, count(lit(1)).alias("rows"))
    return watched, lambda: int(observation.get["rows"])
