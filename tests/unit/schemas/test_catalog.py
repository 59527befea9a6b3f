"""Formats are found by entry point, by any name requests use."""

import tomllib
from pathlib import Path

import pytest

from pydanube.schemas import catalog
from pydanube.schemas.errors import UnknownSchemaFormat
from pydanube.schemas.format import SchemaTools


@pytest.mark.parametrize(
    ("name", "wire_name"),
    [
        ("bytes", "bytes"),
        ("String", "string"),
        ("number", "number"),
        ("int", "number"),
        ("INT64", "number"),
        ("float", "number"),
        ("double", "number"),
        ("json", "json_schema"),
        ("JSON_SCHEMA", "json_schema"),
        ("avro", "avro"),
        ("proto", "protobuf"),
        (" protobuf ", "protobuf"),
    ],
)
def test_a_format_is_known_by_all_its_names(name: str, wire_name: str) -> None:
    assert catalog.load_format(name, SchemaTools()).name == wire_name


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownSchemaFormat, match="'xml' does not exist; there are avro, bytes"):
        catalog.load_format("xml", SchemaTools())


def test_metadata_older_than_the_code_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog, "_installed", dict)
    catalog._factory.cache_clear()
    with pytest.raises(UnknownSchemaFormat, match="install it again"):
        catalog.load_format("avro", SchemaTools())


def test_the_package_declares_exactly_the_formats_there_are() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    declared = tomllib.loads(text)["project"]["entry-points"][catalog.ENTRY_POINT_GROUP]
    assert catalog.format_names() == sorted(declared)
