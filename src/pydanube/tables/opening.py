"""The door: tables of one cluster, for programs and for the command line."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pydanube.client.client import DEFAULT_URL, with_scheme
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.randomness import SystemRandomness
from pydanube.spark.options import Access
from pydanube.tables.catalogs import CatalogSetting, read_catalogs
from pydanube.tables.operations import TableOperations
from pydanube.tables.service import Surroundings
from pydanube.tables.topic_schemas import RegistryConnection


@contextmanager
def surroundings_of(
    url: str = DEFAULT_URL, catalogs: str | Mapping[str, CatalogSetting] | None = None
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
        )


@contextmanager
def open_tables_of(
    url: str = DEFAULT_URL, catalogs: str | Mapping[str, CatalogSetting] | None = None
) -> Iterator[TableOperations]:
    """Give the verbs of `danube table` on the cluster of a broker. They block."""
    with surroundings_of(url, catalogs) as given:
        yield TableOperations(given)
