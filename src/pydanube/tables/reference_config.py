"""The configuration file of the reference's Iceberg exporter, read as settings of tables. Pure.

Where segments lie and how often to look is ours to know: `storage` and `polling` are read and not
needed. Files are as large as commits make them, and `danube table compact` joins them.
"""

from typing import Literal

import msgspec
import yaml
from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.model.names import check_topic_name
from pydanube.tables.catalogs import CatalogSetting
from pydanube.tables.settings import TableSetting, check_setting


class BrokerPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the broker is."""

    address: str


class StoragePart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where segments lie."""

    backend: Literal["s3", "gcs", "azure", "fs"] = "fs"
    root: str = ""
    output_prefix: str = "iceberg"
    options: dict[str, str] = {}


class CatalogPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where tables are."""

    type: Literal["none", "rest", "glue", "s3tables", "sql"] = "none"
    name: str = "danube_catalog"
    properties: dict[str, str] = {}


class CompactionPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When rows are committed."""

    target_parquet_size_mb: int = 200
    max_flush_interval_seconds: int = 300


class PollingPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often to look."""

    interval_seconds: int = 30


class TopicPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One topic."""

    namespace: str
    topic: str
    table_name: str
    compaction: CompactionPart | None = None


class ReferenceConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    broker: BrokerPart
    storage: StoragePart = StoragePart()
    catalog: CatalogPart = CatalogPart()
    topics: list[TopicPart]
    compaction: CompactionPart = CompactionPart()
    polling: PollingPart = PollingPart()

    def catalogs(self) -> dict[str, CatalogSetting]:
        """Return the catalogue, by its name."""
        kept = CatalogSetting(type=self.catalog.type, properties=self.catalog.properties)
        return {self.catalog.name: kept}

    def settings(self) -> dict[str, TableSetting]:
        """Return what each topic is as a table."""
        found = {}
        for each in self.topics:
            compaction = each.compaction or self.compaction
            name = each.topic if each.topic.startswith("/") else f"/{each.namespace}/{each.topic}"
            found[check_topic_name(name)] = check_setting(
                TableSetting(
                    format="iceberg",
                    table=f"{each.namespace}.{each.table_name}",
                    catalog=self.catalog.name,
                    layout="danube-iceberg",
                    freshness_ms=compaction.max_flush_interval_seconds * 1_000,
                )
            )
        return found


def read_reference_config(text: bytes) -> ReferenceConfig:
    """Read the file; InvalidRequest names what is wrong in it."""
    try:
        found = msgspec.convert(yaml.safe_load(text), ReferenceConfig)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"this is no file of danube-iceberg: {error}") from error
    if not found.topics:
        raise InvalidRequest("topics is empty: name at least one")
    if found.catalog.type == "none":
        raise InvalidRequest(
            "catalog.type is none: Parquet files without a catalogue are not written. Name a "
            "catalogue of type rest, glue, s3tables or sql, or keep the topic as a Delta table, "
            "which needs none: danube table enable --format delta --table PATH"
        )
    return found
