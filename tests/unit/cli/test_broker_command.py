from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import pydanube.broker.server
from pydanube.broker.config import BrokerConfig
from pydanube.cli.main import danube
from pydanube.errors import Conflict


class Started:
    """Takes the place of a running broker, and keeps what it was started with."""

    def __init__(self) -> None:
        self.config: BrokerConfig | None = None
        self.options: dict[str, Any] = {}

    def __call__(self, config: BrokerConfig, **options: Any) -> None:
        self.config = config
        self.options = options


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    started = Started()
    monkeypatch.setattr(pydanube.broker.server, "run_broker", started)
    return started


def run(*arguments: str) -> Result:
    return CliRunner().invoke(danube, ["broker", *arguments])


def test_a_data_directory_is_enough(started: Started) -> None:
    result = run("--data-dir", "/data")
    assert result.exit_code == 0, result.output
    assert started.config is not None
    assert started.config.cluster_name == "STANDALONE"
    assert str(started.config.broker.client_address) == "127.0.0.1:6650"
    assert started.config.storage.local_wal_root == "/data/wal"
    assert started.options == {"engine": "http2", "log_format": "text", "log_level": "info"}


def test_flags_override_the_defaults(started: Started) -> None:
    result = run(
        *("--mode", "standalone", "--data-dir", "/data", "--broker-addr", "127.0.0.1:1"),
        *("--admin-addr", "127.0.0.1:2", "--prom-exporter", "127.0.0.1:3"),
        *("--advertised-addr", "http://a.example:1", "--connect-url", "http://proxy.example:9"),
        *("--raft-addr", "127.0.0.1:4", "--log-format", "json", "--log-level", "debug"),
    )
    assert result.exit_code == 0, result.output
    assert started.config is not None
    broker = started.config.broker
    assert (broker.ports.client, broker.ports.admin, broker.ports.prometheus) == (1, 2, 3)
    assert broker.advertised_listeners.broker_url == "http://a.example:1"
    assert broker.advertised_listeners.connect_url == "http://proxy.example:9"
    assert started.options["log_format"] == "json"
    assert started.options["log_level"] == "debug"


def test_a_configuration_file_runs_in_cluster_mode(started: Started, tmp_path: Path) -> None:
    file = tmp_path / "broker.yml"
    file.write_text(
        "cluster_name: MINE\nbroker: {host: 127.0.0.1}\nmeta_store: {}\n"
        "bootstrap_namespaces: [default]\nauth: {mode: none}\nstorage: {}\npolicies: {}\n"
    )
    result = run("--config-file", str(file), "--data-dir", "/meta")
    assert result.exit_code == 0, result.output
    assert started.config is not None
    assert started.config.cluster_name == "MINE"
    assert started.config.meta_store.data_dir == "/meta"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--data-dir"),
        (["--mode", "standalone"], "--data-dir"),
        (["--mode", "cluster"], "--config-file"),
        (["--mode", "edge", "--data-dir", "/data"], "edge is not in this version"),
        (["--data-dir", "/data", "--join"], "--join belongs to --mode cluster"),
        (["--data-dir", "/data", "--seed-nodes", "a:1,b:1"], "--seed-nodes"),
        (["--data-dir", "/data", "--broker-addr", "0.0.0.0:6650"], "--insecure"),
        (["--data-dir", "/data", "--broker-addr", "nonsense"], "127.0.0.1:6650"),
        (["--data-dir", "/data", "--engine", "steam"], "steam"),
        (["--config-file", "/nowhere/at/all.yml"], "No such file"),
    ],
)
def test_what_this_version_cannot_do_is_refused_with_a_sentence(
    started: Started, arguments: list[str], said: str
) -> None:
    result = run(*arguments)
    assert (result.exit_code, said in result.stderr) == (2, True), result.output
    assert started.config is None


def test_listening_beyond_the_machine_is_possible_when_asked_for(started: Started) -> None:
    result = run(
        *("--data-dir", "/data", "--broker-addr", "0.0.0.0:6650", "--insecure"),
        *("--advertised-addr", "http://a.example:6650"),
    )
    assert result.exit_code == 0, result.output


def test_a_broker_that_cannot_start_ends_with_the_exit_code_of_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise Conflict("the port is taken")

    monkeypatch.setattr(pydanube.broker.server, "run_broker", fail)
    result = run("--data-dir", "/data")
    assert (result.exit_code, "error[conflict]: the port is taken" in result.stderr) == (5, True)
