"""Which table a topic goes to, and how; kept with the topic, as a property of it. Pure."""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct, structs

from pydanube.errors import Corruption, InvalidRequest
from pydanube.model.names import check_topic_name
from pydanube.spark.source.planning import Limits
from pydanube.tables.columns import ENVELOPE
from pydanube.tables.export_rules import ExportRules, OnBadMessage
from pydanube.tables.lake import Format
from pydanube.tables.partitioning import read_partitioning

PROPERTY = "danube.table"
PATTERNS_PROPERTY = "danube.table_patterns"
PATTERNS_TOPIC = "/system/tables"
"""Settings of patterns have no topic of their own, so they are kept with this one."""
NONE = "none"
"""The property of a topic that is no table, whatever patterns say."""
PATTERN_TABLE = "{namespace}.{topic}"
FRESHNESS_MS_MIN = 1_000
FRESHNESS_MS_MAX = 3_600_000
COMMIT_BYTES = 128 * 1024 * 1024
UPSERT_ROWS_MAX = 10_000
"""Of one commit into a table with a key: Iceberg names every key in its conditions."""

Mode = Literal["append", "upsert"]
Layout = Literal["danube", "danube-iceberg"]
"""Which columns there are: all that a message has, or those of the reference's exporter."""


class TableSetting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one topic is a table."""

    format: Format
    table: str
    """`namespace.name` in a catalogue; of Delta also the path or URL of the table."""
    catalog: str | None = None
    freshness_ms: int = 30_000
    partition_by: str = ""
    mode: Mode = "append"
    key: tuple[str, ...] = ()
    """Of mode upsert: columns; the routing key, or fields of payloads."""
    on_error: OnBadMessage = "dlq"
    layout: Layout = "danube"
    starts: dict[str, int] = {}
    """Where the partitions that there were began, if not at their beginning."""

    @property
    def dead_letters(self) -> str:
        """The table of dead letters."""
        return f"{self.table.rstrip('/')}__dlq"

    @property
    def shape(self) -> str:
        """What a table must stay like while it is continued."""
        rows = f"one row per {', '.join(self.key)}" if self.key else "one row per message"
        return f"{self.layout}, {rows}"

    @property
    def hold(self) -> str:
        """The cursor that keeps history which the table lacks."""
        return f"table:{self.table}"

    def rules(self) -> ExportRules:
        """Return what the exporter goes by."""
        rows = UPSERT_ROWS_MAX if self.mode == "upsert" else None
        return ExportRules(
            starts=self.starts,
            on_bad_message=self.on_error,
            upsert_key=self.key,
            limits=Limits(bytes=COMMIT_BYTES, rows=rows),
        )


def check_setting(setting: TableSetting) -> TableSetting:
    """Return a setting that makes sense; InvalidRequest says what does not."""
    if not FRESHNESS_MS_MIN <= setting.freshness_ms <= FRESHNESS_MS_MAX:
        raise InvalidRequest("freshness is 1s to 1h")
    read_partitioning(setting.partition_by)
    if (setting.mode == "upsert") != bool(setting.key):
        raise InvalidRequest("a key belongs to mode upsert, and mode upsert needs one")
    if len(set(setting.key)) != len(setting.key):
        raise InvalidRequest("the key names a column twice")
    if set(setting.key) & (set(ENVELOPE.names) - {"routing_key"}):
        raise InvalidRequest("the key is routing_key, or fields of payloads")
    if setting.layout == "danube-iceberg" and (setting.format != "iceberg" or setting.partition_by):
        raise InvalidRequest("layout danube-iceberg is for Iceberg tables without partitions")
    if is_path(setting.table):
        if setting.format != "delta":
            raise InvalidRequest(
                f"an Iceberg table is namespace.name in a catalogue, not {setting.table!r}"
            )
        if setting.catalog is not None:
            raise InvalidRequest("a table given by its path belongs to no catalogue")
    elif setting.catalog is None:
        raise InvalidRequest(
            f"which catalogue is {setting.table} in? Name one with --catalog; of Delta the path of "
            "a directory will do: --table /data/orders"
        )
    elif setting.table.count(".") != 1 or not all(setting.table.split(".")):
        raise InvalidRequest(f"{setting.table!r} is no table; write it as namespace.name")
    return setting


def changes_between(before: TableSetting, after: TableSetting) -> list[str]:
    """Say what of a setting changes, and how, for people."""
    found = []
    for name in before.__struct_fields__:
        old, new = (_shown(getattr(each, name)) for each in (before, after))
        if old != new:
            found.append(f"{name}: {old} -> {new}")
    return found


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return "none" if value is None or value in ("", {}) else str(value)


def is_path(table: str) -> bool:
    """Tell whether a table is given by its path or URL, and not by name."""
    return "/" in table


def default_table(topic: str) -> str:
    """Return the table of a topic that names none: /default/orders is default.orders."""
    return check_topic_name(topic).strip("/").replace("/", ".").replace("-", "_")


def is_pattern(topic: str) -> bool:
    """Tell whether a name stands for many topics: `/default/*`, `/shop/orders-*`."""
    return "*" in topic


def pattern_expression(pattern: str) -> str:
    """Return a pattern over names as a regular expression; InvalidRequest: it is none."""
    check_topic_name(pattern.replace("*", "x"))
    return "[^/]*".join(re.escape(each) for each in pattern.split("*"))


def check_pattern_setting(setting: TableSetting) -> TableSetting:
    """Return a setting for many topics that makes sense."""
    if "{topic}" not in setting.table:
        raise InvalidRequest(
            f"all topics of a pattern would share table {setting.table!r}; name it with {{topic}}, "
            "and {namespace} if there are several: --table 'lake.{topic}'"
        )
    return check_setting(setting_for(setting, "/namespace/topic"))


def setting_for(setting: TableSetting, topic: str) -> TableSetting:
    """Return what a pattern's setting comes to for one of its topics."""
    namespace, _, name = topic.strip("/").partition("/")
    parts = {"{namespace}": namespace, "{topic}": name}
    table = setting.table
    for mark, value in parts.items():
        table = table.replace(mark, value if is_path(setting.table) else value.replace("-", "_"))
    return structs.replace(setting, table=table)


def chosen_by(patterns: Mapping[str, TableSetting], topic: str) -> TableSetting | None:
    """Return what patterns say about a topic; of several that match, the longest is meant."""
    for pattern in sorted(patterns, key=lambda each: (-len(each), each)):
        if re.fullmatch(pattern_expression(pattern), topic, re.ASCII):
            return setting_for(patterns[pattern], topic)
    return None


def encode_setting(setting: TableSetting) -> str:
    """Return a setting as it is kept."""
    return msgspec.json.encode(setting).decode()


def decode_setting(topic: str, text: str) -> TableSetting:
    """Read what `encode_setting` wrote."""
    try:
        return msgspec.json.decode(text, type=TableSetting)
    except msgspec.MsgspecError as error:
        raise Corruption(
            f"property {PROPERTY} of topic {topic} is not readable ({error}): enable the table anew"
        ) from error
