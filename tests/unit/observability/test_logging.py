"""What the server's logs look like, and what never stands in them."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pydanube.observability.logging import LogFormat, LogLevel, get_logger, log_to_stderr


class Written:
    def __init__(self) -> None:
        self._stream = io.StringIO()
        self._handlers: list[logging.Handler] = []

    def as_(self, style: LogFormat, level: LogLevel = "info") -> "Written":
        self._handlers.append(log_to_stderr(level, style, self._stream))
        return self

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()

    def stop(self) -> None:
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
        logging.getLogger("pydanube").setLevel(logging.NOTSET)


@pytest.fixture
def written() -> Iterator[Written]:
    written = Written()
    yield written
    written.stop()


log = get_logger("pydanube.topics.manager")


def test_text_shows_level_event_module_and_fields(written: Written) -> None:
    written.as_("text")
    log.info("topic created", topic="/default/orders", partitions=3)
    (line,) = written.lines
    assert "[info     ] topic created" in line
    assert "[pydanube.topics.manager] partitions=3 topic=/default/orders" in line


def test_json_gives_each_field_its_own_key(written: Written) -> None:
    written.as_("json")
    log.warning("journal is slow", sync_ms=750, note='two words, "quoted", 100%')
    entry = json.loads(written.lines[0])
    assert entry.pop("timestamp").endswith("Z")
    assert entry == {
        "event": "journal is slow",
        "sync_ms": 750,
        "note": 'two words, "quoted", 100%',
        "level": "warning",
        "logger": "pydanube.topics.manager",
    }


def test_an_error_brings_its_traceback(written: Written) -> None:
    written.as_("json")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("the pump stopped")
    log.error("the pump stopped", error=KeyError("lost"))
    assert "ValueError: broken" in json.loads(written.lines[0])["exception"]
    assert "KeyError: 'lost'" in json.loads(written.lines[1])["exception"]


@pytest.mark.parametrize("style", ["text", "json"])
def test_secrets_are_hidden(written: Written, style: LogFormat) -> None:
    written.as_(style)
    log.info("login", jwt_token="hush", Authorization="Bearer hush", secret_key="hush", user="ann")
    assert "hush" not in "".join(written.lines)
    assert "ann" in "".join(written.lines)


def test_what_is_below_the_level_is_not_written(written: Written) -> None:
    written.as_("text", "warning")
    log.info("chatter")
    log.warning("trouble")
    assert len(written.lines) == 1


def test_records_of_other_packages_are_shown_too(written: Written) -> None:
    written.as_("json")
    logging.getLogger("grpc").warning("peer %s is gone", "ipv4:127.0.0.1:1")
    assert json.loads(written.lines[0])["event"] == "peer ipv4:127.0.0.1:1 is gone"


def test_a_second_call_replaces_the_first(written: Written) -> None:
    written.as_("text").as_("json")
    log.info("once")
    assert len(written.lines) == 1


def test_without_a_handler_of_ours_records_reach_the_hosts_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "pydanube"):
        log.info("topic created", topic="/default/orders")
    assert caplog.messages == ["topic created topic=/default/orders"]


def test_asking_for_a_logger_does_not_import_structlog() -> None:
    code = (
        "import sys; from pydanube.observability.logging import get_logger;"
        "get_logger('pydanube').info('x'); sys.exit('structlog' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
