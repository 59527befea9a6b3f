"""Runs are known to everybody who asks a broker; `status --watch` shows them again and again."""

import json

import pytest
from click.testing import CliRunner
from msgspec import structs

from pydanube.cli.main import danube
from pydanube.cli.pipeline_watch import table_of, watch
from pydanube.errors import NotFound
from pydanube.pipelines.announcing import EVERY_MS, PIPELINES_TOPIC, SILENT_AFTER_MS, Announcer
from pydanube.pipelines.control import known_statuses
from pydanube.pipelines.flow_files import FlowFiles
from pydanube.pipelines.reports import FlowStatus
from pydanube.spark.options import Access
from pydanube.testing.broker import Broker
from tests.support.advancing_clock import AdvancingClock
from tests.support.spark_topics import Topics


@pytest.fixture(scope="module")
def broker():
    with Broker() as broker:
        yield broker


@pytest.fixture
def announcer(broker):
    clock = AdvancingClock()
    found = Announcer(Access(urls=(broker.url,), request_timeout_ms=5_000), clock)
    found.clock = clock
    return found


def status(flow: str, pipeline: str = "p", **values) -> FlowStatus:
    return FlowStatus(pipeline=pipeline, flow=flow, target="/default/t", **values)


def messages(broker) -> int:
    topics = Topics(broker.url)
    try:
        return topics.frontier(PIPELINES_TOPIC)
    finally:
        topics.close()


def test_what_runs_say_is_known_at_the_broker(broker, announcer):
    running = status("a", state="RUNNING", batch=7, lag=3)
    announcer.tell([running, status("b", state="FAILED", error="no")])
    found = {each.flow: each for each in known_statuses(None, broker.url, "p", announcer.clock)}
    assert found["a"] == running
    assert (found["b"].state, found["b"].error) == ("FAILED", "no")
    with pytest.raises(NotFound, match="no flow of other is known to"):
        known_statuses(None, broker.url, "other")


def test_the_same_is_said_again_only_after_a_while(broker, announcer):
    running = status("c", state="RUNNING")
    announcer.tell([running])
    before = messages(broker)
    announcer.tell([structs.replace(running, batch=1)])
    assert messages(broker) == before
    announcer.clock.advance(EVERY_MS / 1000)
    announcer.tell([running])
    assert messages(broker) == before + 1
    announcer.tell([structs.replace(running, state="DONE")])
    announcer.clock.advance(EVERY_MS / 1000)
    announcer.tell([structs.replace(running, state="DONE")])
    assert messages(broker) == before + 2


def test_a_run_that_is_silent_is_named(broker, announcer):
    announcer.tell([status("a", "silent", state="RUNNING")])
    announcer.clock.advance(SILENT_AFTER_MS / 1000)
    (found,) = known_statuses(None, broker.url, "silent", announcer.clock)
    assert "has said nothing for 60 s" in found.error


def test_messages_of_strangers_say_nothing(broker, announcer):
    topics = Topics(broker.url)
    topics.publish_payloads(PIPELINES_TOPIC, [b"hello", b"{}"])
    topics.close()
    announcer.tell([status("a", "after", state="DONE")])
    assert [each.flow for each in known_statuses(None, broker.url, "after")] == ["a"]


def test_a_broker_that_is_away_disturbs_nothing(announcer):
    away = Announcer(
        Access(urls=("http://127.0.0.1:1",), request_timeout_ms=5_000), announcer.clock
    )
    away.tell([status("a", state="RUNNING")])
    away.tell([status("a", state="DONE")])


def test_the_directory_knows_better_than_the_broker(broker, announcer, tmp_path):
    announcer.tell([status("a", "both", state="RUNNING"), status("b", "both", state="DONE")])
    FlowFiles(str(tmp_path), "both", "a").report(status("a", "both", state="RUNNING"))
    found = known_statuses(str(tmp_path), broker.url, "both", announcer.clock)
    assert [(each.flow, each.state) for each in found] == [("a", "STOPPED"), ("b", "DONE")]


def test_status_asks_the_broker_and_prints(broker, announcer):
    announcer.tell([status("a", "shown", state="DONE", batch=4)])
    arguments = ["pipeline", "status", "shown", "--service-addr", broker.url]
    done = CliRunner().invoke(danube, arguments)
    assert done.exit_code == 0, done.output
    assert "shown/a" in done.output
    done = CliRunner().invoke(danube, [*arguments, "--output", "json"])
    assert json.loads(done.output)[0]["batch"] == 4


class TestWatching:
    def looks(self, *found: list[FlowStatus]):
        waiting = list(found)
        self.waits: list[float] = []
        return waiting

    @pytest.mark.parametrize("output", ["text", "json"])
    def test_lines_are_printed_when_there_is_news(self, capsys, output):
        first = status("a", state="RUNNING", batch=1, in_per_second=1234.0, batch_ms=310, lag=9)
        waiting = self.looks([first], [first], [structs.replace(first, batch=2)])
        watch(
            lambda: waiting.pop(0),
            output,
            0.5,
            lambda: not waiting,
            lambda each: self.waits.append(each),
        )
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 2
        assert self.waits == [0.5, 0.5]
        if output == "json":
            assert [json.loads(line)["batch"] for line in lines] == [1, 2]
        else:
            assert "in 1.2k/s" in lines[0]
            assert "lag 9 rows" in lines[0]
            assert "batch 310 ms" in lines[0]

    def test_a_table_shows_rates_lag_and_batch_time(self):
        from rich.console import Console

        console = Console(width=200, record=True, file=None, quiet=False, force_terminal=False)
        shown = status(
            "a", state="RUNNING", batch=1, in_per_second=1234.0, batch_ms=310, lag=9, error="[no]"
        )
        with console.capture() as captured:
            console.print(table_of([shown]))
        text = captured.get()
        for word in ("p/a", "RUNNING", "1,234", "310", "9", "[no]", "BATCH MS", "LAG"):
            assert word in text
