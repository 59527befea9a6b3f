"""Which table a topic goes to, and how; kept with the topic, as a property of it. Pure."""

from typing import Literal

import msgspec
from msgspec import Struct

from pydanube.errors import Corruption, InvalidRequest
from pydanube.model.names import check_topic_name
from pydanube.spark.source.planning import Limits
from pydanube.tables.columns import ENVELOPE
from pydanube.tables.lake import Format
from pydanube.tables.partitioning import read_partitioning
from pydanube.tables.ranges import ExportRules, OnBadMessage

PROPERTY = "danube.table"
FRESHNESS_MS_MIN = 1_000
FRESHNESS_MS_MAX = 3_600_000
COMMIT_BYTES = 128 * 1024 * 1024
UPSERT_ROWS_MAX = 10_000
"""Of one commit into a table with a key: Iceberg names every key in its conditions."""

Mode = Literal["append", "upsert"]


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
    starts: dict[str, int] = {}
    """Where the partitions that there were began, if not at their beginning."""

    @property
    def dead_letters(self) -> str:
        """The table of dead letters."""
        return f"{self.table.rstrip('/')}__dlq"

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


def is_path(table: str) -> bool:
    """Tell whether a table is given by its path or URL, and not by name."""
    return "/" in table


def default_table(topic: str) -> str:
    """Return the table of a topic that names none: /default/orders is default.orders."""
    return check_topic_name(topic).strip("/").replace("/", ".").replace("-", "_")


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
