"""A class that keeps state: counts the rows of each key, over all batches."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor


class Counting(StatefulProcessor):
    output = "routing_key string, last bigint, count bigint"

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        before = self._count.get()[0] if self._count.exists() else 0
        frames = list(rows)
        count = before + sum(len(each) for each in frames)
        self._count.update((count,))
        last = max(int(each["offset"].max()) for each in frames)
        yield pd.DataFrame({"routing_key": [key[0]], "last": [last], "count": [count]})

    def close(self) -> None:
        pass
