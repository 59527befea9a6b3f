"""Tools for one topic and its tables, opened wherever they are used: here or in an executor."""

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from pydanube.runtime.clock import SystemClock
from pydanube.runtime.randomness import SystemRandomness
from pydanube.spark.options import Access
from pydanube.tables.catalog_settings import Catalogs
from pydanube.tables.catalogs import open_tables
from pydanube.tables.ranges import TableTools
from pydanube.tables.settings import TableSetting
from pydanube.tables.topic_schemas import RegistryConnection, TopicSchemas
from pydanube.tables.topic_source import BrokerTopic


class BrokerToolbox(Struct, frozen=True, kw_only=True):
    """Tools over brokers and catalogues; nothing is connected to before they are opened."""

    access: Access
    catalogs: Catalogs
    topic: str
    setting: TableSetting

    @contextmanager
    def open(self) -> Iterator[TableTools]:
        """Give the tools; sealed history is read from the segment store, if it can be opened."""
        clock = SystemClock()
        tables = open_tables(self.topic, self.setting, self.catalogs, clock)
        with RegistryConnection(self.access.urls[0]) as registry:
            yield TableTools(
                source=BrokerTopic(self.access, self.topic, segment_access="auto"),
                main=tables.main,
                dead=tables.dead,
                schemas=TopicSchemas(registry, self.topic),
                clock=clock,
                randomness=SystemRandomness(),
            )
