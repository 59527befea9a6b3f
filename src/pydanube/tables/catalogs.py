"""Catalogues of tables, named once in a file.

    catalogs:
      lake:
        type: sql
        properties: {uri: "sqlite:////data/catalog.db", warehouse: "file:///data/warehouse"}
      files:
        type: none
        properties: {warehouse: /data/lake}

The types rest, glue and sql are pyiceberg's, with its properties; s3tables is its rest with signed
requests, and takes `uri`, `warehouse` (the ARN of the bucket) and `rest.signing-region`. A
catalogue of type none is a directory or bucket of tables: `namespace.name` is
`warehouse/namespace/name`. Its other properties are deltalake's storage options for Delta tables,
and pyiceberg's `s3.…` for Iceberg tables.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import yaml
from msgspec import Struct

from pydanube.errors import InvalidRequest, NotFound
from pydanube.runtime.blocking import read_file
from pydanube.runtime.clock import Clock
from pydanube.tables.catalog_settings import CatalogFile, Catalogs, CatalogSetting
from pydanube.tables.lake import LakeTable
from pydanube.tables.partitioning import read_partitioning
from pydanube.tables.reference_layout import ReferenceLayoutTable
from pydanube.tables.settings import TableSetting, is_path

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def read_catalogs(path: str) -> Catalogs:
    """Read the file; InvalidRequest names what is wrong in it."""
    try:
        found = yaml.safe_load(read_file(path))
        return msgspec.convert(found, CatalogFile).catalogs
    except OSError as error:
        raise InvalidRequest(f"the catalogues cannot be read: {error}") from error
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"{path} is no file of catalogues: {error}") from error


class Tables(Struct, frozen=True):
    """The table of a topic, and that of its dead letters."""

    main: LakeTable
    dead: LakeTable


def open_tables(topic: str, setting: TableSetting, catalogs: Catalogs, clock: Clock) -> Tables:
    """Return the tables of a setting; whether they exist is not asked yet."""
    partitioning = read_partitioning(setting.partition_by)
    catalog = None if setting.catalog is None else find_catalog(catalogs, setting.catalog)
    if setting.format == "delta":
        from pydanube.tables.delta import DeltaLakeTable

        main, options = _delta_place(setting.table, setting, catalog)
        dead, _ = _delta_place(setting.dead_letters, setting, catalog)
        return Tables(
            DeltaLakeTable(
                main,
                topic,
                clock,
                partitioning=partitioning,
                storage_options=options,
                shape=setting.shape,
            ),
            DeltaLakeTable(dead, topic, clock, storage_options=options),
        )
    from pydanube.tables.iceberg import IcebergLakeTable

    if catalog is None or setting.catalog is None:
        raise InvalidRequest(f"no catalogue is given for {setting.table}: name one with --catalog")
    opened = open_catalog(setting.catalog, _iceberg_properties(catalog))
    main_table: LakeTable = IcebergLakeTable(
        opened, setting.table, topic, partitioning=partitioning, shape=setting.shape
    )
    if setting.layout == "danube-iceberg":
        main_table = ReferenceLayoutTable(main_table, topic)
    return Tables(main_table, IcebergLakeTable(opened, setting.dead_letters, topic))


def open_catalog(name: str, properties: Mapping[str, str]) -> "Catalog":
    """Return a catalogue of Iceberg tables; `type` is among the properties."""
    if properties.get("type") == "none":
        from pydanube.tables.bare_catalog import open_bare_catalog

        given = {key: value for key, value in properties.items() if key != "type"}
        return open_bare_catalog(name, given)
    from pyiceberg.catalog import load_catalog

    return load_catalog(name, **properties)


def _iceberg_properties(catalog: CatalogSetting) -> dict[str, str]:
    """Return a catalogue as pyiceberg wants it."""
    if catalog.type != "s3tables":
        return {"type": catalog.type, **catalog.properties}
    # The service speaks Iceberg's REST protocol, with requests signed for its own name.
    signed = {"rest.sigv4-enabled": "true", "rest.signing-name": "s3tables"}
    return {"type": "rest", **signed, **catalog.properties}


def find_catalog(catalogs: Catalogs, name: str) -> CatalogSetting:
    """Return a catalogue by name."""
    found = catalogs.get(name)
    if found is None:
        known = ", ".join(sorted(catalogs)) or "none is defined"
        raise NotFound(
            f"there is no catalogue {name} ({known}); name it in the file of --catalogs or "
            "DANUBE_CATALOGS"
        )
    return found


def _delta_place(
    table: str, setting: TableSetting, catalog: CatalogSetting | None
) -> tuple[str, dict[str, str]]:
    if is_path(table):
        return table, {}
    if catalog is None or catalog.type != "none" or "warehouse" not in catalog.properties:
        raise InvalidRequest(
            f"a Delta table lies in a catalogue of type none with a warehouse; {setting.catalog} "
            "is not one"
        )
    options = dict(catalog.properties)
    root = options.pop("warehouse").rstrip("/")
    return f"{root}/{table.replace('.', '/')}", options
