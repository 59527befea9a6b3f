"""The configuration file of the reference's Iceberg exporter, read as settings of tables. Pure.

Where segments lie and how often to look is ours to know: `polling` is read and not needed, and
`storage` says only where tables lie that are in no catalogue. Files are as large as commits make
them, and `danube table compact` joins them.
"""

from typing import Literal

import msgspec
import yaml
from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.model.names import check_topic_name
from pydanube.tables.catalog_settings import CatalogSetting
from pydanube.tables.settings import TableSetting, check_setting

_S3_OPTIONS = {
    "region": "s3.region",
    "endpoint": "s3.endpoint",
    "access_key_id": "s3.access-key-id",
    "access_key": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "secret_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "enable_virtual_host_style": "s3.force-virtual-addressing",
}


class BrokerPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the broker is."""

    address: str


class StoragePart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where segments lie, and tables that are in no catalogue."""

    backend: Literal["s3", "gcs", "azure", "fs"] = "fs"
    root: str = ""
    output_prefix: str = "iceberg"
    options: dict[str, str] = {}

    def warehouse(self) -> dict[str, str]:
        """Return where tables without a catalogue lie, as properties of one."""
        if self.backend not in ("fs", "s3") or not self.root:
            raise InvalidRequest(
                "catalog.type is none: tables without a catalogue lie below storage.root, a "
                "directory (storage.backend fs) or an S3 bucket (s3). Name one, or a catalogue of "
                "type rest, glue, s3tables or sql"
            )
        root = self.root.rstrip("/")
        prefix = self.output_prefix.strip("/")
        if self.backend == "fs":
            return {"warehouse": f"{root}/{prefix}"}
        unknown = sorted(self.options.keys() - _S3_OPTIONS.keys())
        if unknown:
            raise InvalidRequest(
                f"storage.options.{unknown[0]} is not known for tables without a catalogue; give "
                "catalog.properties instead: warehouse, and s3.… as pyiceberg calls them"
            )
        given = {_S3_OPTIONS[name]: value for name, value in self.options.items()}
        bucket = root if "://" in root else f"s3://{root}"
        return {"warehouse": f"{bucket}/{prefix}", **given}


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
        properties = self.catalog.properties
        if self.catalog.type == "none" and "warehouse" not in properties:
            properties = {**self.storage.warehouse(), **properties}
        kept = CatalogSetting(type=self.catalog.type, properties=properties)
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
    found.catalogs()
    return found
