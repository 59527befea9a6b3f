"""Ask the whole topic, history and tail together: python query.py [URL]."""

import sys
from typing import Any

from pydanube.spark import history, session


def largest(spark: Any, url: str) -> list[Any]:  # noqa: ANN401  Spark's rows.
    """Return the largest order of each country, over all that was ever published."""
    history(spark, "/default/orders", columns=["payload"], url=url).createOrReplaceTempView("o")
    return spark.sql(
        "SELECT v.country, max(v.amount) AS amount, count(*) AS orders FROM (SELECT from_json("
        "cast(payload AS string), 'country string, amount double') AS v FROM o) "
        "GROUP BY v.country ORDER BY v.country"
    ).collect()


if __name__ == "__main__":
    running = session("query", "local[2]")
    for row in largest(running, *(sys.argv[1:] or ["http://127.0.0.1:6650"])):
        print(f"{row.country}  largest {row.amount:>9.2f}  of {row.orders} orders")
    running.stop()
