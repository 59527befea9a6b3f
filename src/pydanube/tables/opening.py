"""The door: tables of one cluster, for programs and for the command line."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from pydanube.client.client import DEFAULT_URL, with_scheme
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.randomness import SystemRandomness
from pydanube.spark.options import Access
from pydanube.tables.catalog_settings import CatalogSetting
from pydanube.tables.catalogs import read_catalogs
from pydanube.tables.crew import Crew
from pydanube.tables.operations import TableOperations
from pydanube.tables.service import Surroundings
from pydanube.tables.spark_workers import DEFAULT_MASTER, SparkWorkers
from pydanube.tables.topic_schemas import RegistryConnection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SparkUse = Literal["auto", "always", "never"]
"""When Spark's executors do the work: if there is much of it, in any case, or not at all."""


@contextmanager
def crew_by(
    use: SparkUse, master: str = DEFAULT_MASTER, spark: "SparkSession | None" = None
) -> Iterator[Crew | None]:
    """Give a crew of Spark's executors; the session starts with the first work for it."""
    if use == "never":
        yield None
        return
    workers = SparkWorkers(spark, master)
    try:
        if use == "always":
            yield Crew(workers=workers, bytes_min=1)
        else:
            yield Crew(workers=workers, optional=True)
    finally:
        workers.stop()


@contextmanager
def surroundings_of(
    url: str = DEFAULT_URL,
    catalogs: str | Mapping[str, CatalogSetting] | None = None,
    crew: Crew | None = None,
) -> Iterator[Surroundings]:
    """Give what exporters need; `catalogs` is a file of them, or what such a file says."""
    found = read_catalogs(catalogs) if isinstance(catalogs, str) else catalogs or {}
    with RegistryConnection(with_scheme(url)) as registry:
        yield Surroundings(
            access=Access(urls=(with_scheme(url),)),
            catalogs=found,
            registry=registry,
            clock=SystemClock(),
            randomness=SystemRandomness(),
            crew=crew,
        )


@contextmanager
def open_tables_of(
    url: str = DEFAULT_URL,
    catalogs: str | Mapping[str, CatalogSetting] | None = None,
    *,
    spark: "SparkSession | SparkUse" = "never",
) -> Iterator[TableOperations]:
    """Give the verbs of `danube table` on the cluster of a broker. They block.

    With a session of Spark, or `auto`, its executors do what is large.
    """
    use: SparkUse = spark if isinstance(spark, str) else "auto"
    session = None if isinstance(spark, str) else spark
    with crew_by(use, spark=session) as crew, surroundings_of(url, catalogs, crew) as given:
        yield TableOperations(given)
