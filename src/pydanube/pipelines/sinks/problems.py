"""What kinds of sinks check alike: keys that belong to other kinds, topics, catalogues. Pure."""

from collections.abc import Iterator, Mapping

from pydanube.errors import InvalidRequest
from pydanube.model.names import check_topic_name
from pydanube.pipelines.definitions import Scalar, Sink
from pydanube.pipelines.places import Path

ICEBERG_CATALOGS = ("rest", "sql", "glue", "hive", "dynamodb", "none")


def topic_problem(topic: str) -> str | None:
    """Return what is wrong with the name of a topic."""
    try:
        check_topic_name(topic)
    except InvalidRequest as error:
        return str(error)
    return None


def not_for_topics(sink: Sink) -> Iterator[tuple[Path, str]]:
    """Yield the keys that only a topic takes."""
    if sink.topic is not None or sink.encode != "none" or sink.schema_subject is not None:
        yield (), f"topic, encode and schema_subject are for danube sinks, not for {sink.format}"


def not_by_name(sink: Sink) -> Iterator[tuple[Path, str]]:
    """Yield the keys that only tables by name take."""
    if sink.table is not None or sink.catalog or sink.url is not None:
        yield (), f"table, catalog and url are for iceberg and sql sinks, not for {sink.format}"


def not_by_path(sink: Sink) -> Iterator[tuple[Path, str]]:
    """Yield the key that only tables by path take."""
    if sink.path is not None:
        yield ("path",), f"is for delta and parquet, not for {sink.format}"


def needs_path(sink: Sink) -> Iterator[tuple[Path, str]]:
    """Yield a path that is missing."""
    if sink.path is None:
        yield (), f"a {sink.format} sink needs path, such as file:///lake/orders"


def needs_key_for_upsert(sink: Sink) -> Iterator[tuple[Path, str]]:
    """Yield a key without upsert, or the reverse."""
    if (sink.mode == "upsert") != bool(sink.key):
        yield (), "mode: upsert and key go together: key: [column, …] says which row is replaced"


def not_partitioned(sink: Sink) -> Iterator[tuple[Path, str]]:
    """Yield partitions of what has none."""
    if sink.partition_by:
        yield ("partition_by",), f"is for delta, iceberg and parquet, not for {sink.format}"


def iceberg_problems(
    table: str | None, catalog: Mapping[str, Scalar], what: str
) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with a table of Iceberg and its catalogue."""
    parts = table.split(".") if table is not None else []
    if table is None or len(parts) < 2 or not all(_is_word(part) for part in parts):
        yield ("table",), f"{what} of Iceberg is a table by name, such as table: shop.orders"
    kind = catalog.get("type")
    if kind not in ICEBERG_CATALOGS:
        yield (
            ("catalog",),
            f"type is one of {', '.join(ICEBERG_CATALOGS)}; write catalog: {{type: sql, uri: …, "
            "warehouse: …}",
        )
    if kind == "none" and not catalog.get("warehouse"):
        yield ("catalog",), "of type none needs warehouse: the directory or bucket of its tables"
    if kind == "none" and len(parts) > 2:
        yield ("table",), "of a catalog of type none is namespace.name, such as table: shop.orders"


def _is_word(text: str) -> bool:
    return bool(text) and all(each.isalnum() or each == "_" for each in text)
