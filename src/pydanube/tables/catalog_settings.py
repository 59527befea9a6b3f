"""What the file of catalogues says of one; `tables.catalogs` opens them. Pure."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct


class CatalogSetting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One catalogue."""

    type: Literal["rest", "glue", "s3tables", "sql", "none"]
    properties: dict[str, str] = {}


class CatalogFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    catalogs: dict[str, CatalogSetting]


Catalogs = Mapping[str, CatalogSetting]
