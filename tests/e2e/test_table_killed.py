"""Exporters killed for good, over and over, beside each other: the table stays exact."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pydanube.tables.opening import open_tables_of
from pydanube.tables.settings import TableSetting
from pydanube.testing.broker import Broker
from tests.support.spark_topics import Topics

TOPIC = "/default/orders"
PROGRAM = "from pydanube.cli.main import danube; danube()"
ROUNDS = 3
ROWS = 300


def start(url: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, "table", "run", "--service-addr", url]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


@pytest.mark.e2e
@pytest.mark.slow
def test_killed_exporters_neither_lose_nor_repeat_a_message(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    path = str(tmp_path / "orders")
    with Broker() as broker, open_tables_of(broker.url) as tables:
        topics = Topics(broker.url)
        topics.publish(TOPIC, range(ROWS))
        tables.enable(TOPIC, TableSetting(format="delta", table=path, freshness_ms=1_000))
        for turn in range(1, ROUNDS + 1):
            pair = [start(broker.url), start(broker.url)]
            try:
                assert pair[0].stderr is not None
                assert pair[0].stderr.readline() == "serving tables\n"
                topics.publish(TOPIC, range(turn * ROWS, (turn + 1) * ROWS), rows_at_once=20)
                time.sleep(0.4 * turn)  # The kill comes at another moment each time.
            finally:
                for process in pair:
                    process.send_signal(signal.SIGKILL)
                    process.communicate()
        assert tables.status(TOPIC).snapshots > 3, "the exporters did some of it"
        assert tables.backfill(TOPIC, report=lambda progress: None).lag_rows == 0
        assert tables.verify(TOPIC).is_exact
        topics.close()
    rows = DeltaTable(path).to_pyarrow_table(columns=["offset", "payload"]).to_pylist()
    rows.sort(key=lambda row: row["offset"])
    assert [row["offset"] for row in rows] == list(range((ROUNDS + 1) * ROWS))
    assert [json.loads(row["payload"])["number"] for row in rows] == list(range(len(rows)))
