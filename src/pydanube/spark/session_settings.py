"""What a session of Spark is told, and why; nothing here starts one. Pure."""

from collections.abc import Mapping
from types import MappingProxyType

from pydanube.spark.amounts import read_size

SCHEME = "sc://"
"""How the address of a Spark Connect server begins."""
ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES_PER_BATCH = "spark.sql.execution.arrow.maxBytesPerBatch"
UNMEASURED = str(2**31 - 1)
"""The value of BYTES_PER_BATCH with which Spark does not look how large a batch is."""
BATCH_BYTES_MAX = 64 * 2**20
"""What a batch may hold that goes to Python: Spark's own limit."""

SESSION_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        # A reader with filters is refused without it, and times have one meaning.
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        # Rows go to Python in batches that stay in the processor's caches and in memory that is
        # in use already: Spark's own 10,000 rows of 1 KiB do not.
        ROWS_PER_BATCH: "4000",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
)
"""What every session sets unless told otherwise, that of a Spark Connect server included."""

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        **SESSION_SETTINGS,
        # Else Connect listens on all addresses.
        "spark.connect.grpc.binding.address": "127.0.0.1",
        # Bytes between workers and Java have stalled over loopback TCP.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.worker.idleTimeoutSeconds": "300",
        "spark.python.worker.killOnIdleTimeout": "true",
    }
)
"""What `session` sets unless told otherwise where it starts Spark itself."""


def is_connect_url(master: str) -> bool:
    """Tell whether a master is a Spark Connect server."""
    return master.startswith(SCHEME)


def promised_rows(row_bytes_max: int | str | None) -> dict[str, str]:
    """Return settings for batches of rows that are no larger; none if nothing is promised."""
    if row_bytes_max is None:
        return {}
    fitting = BATCH_BYTES_MAX // read_size(str(row_bytes_max))
    rows = min(int(SESSION_SETTINGS[ROWS_PER_BATCH]), max(1, fitting))
    return {ROWS_PER_BATCH: str(rows), BYTES_PER_BATCH: UNMEASURED}
