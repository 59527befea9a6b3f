"""The broker's own configuration: defaults, what it refuses, and what it tells clients."""

import re
from pathlib import Path

import pytest

from pydanube.broker.config import (
    BrokerConfig,
    advertised_urls,
    load_config,
    standalone_config,
)
from pydanube.broker.config_shape import all_paths, dotted
from pydanube.broker.errors import InvalidConfig
from pydanube.errors import InvalidRequest, NotSupported
from pydanube.model.policies import MESSAGE_BYTES_MAX, Policies

ROOT = Path(__file__).parents[3]
MINIMAL = """
cluster_name: north
broker: {}
meta_store: {}
bootstrap_namespaces: [default]
auth: {}
storage: {}
policies: {}
"""

# Every key of Danube's own file, with values other than the defaults where this version can.
COMPLETE = """
cluster_name: "MY_CLUSTER"
broker:
  host: "127.0.0.1"
  ports:
    client: 6651
    admin: 50052
    raft: 7651
    prometheus: 9041
  advertised_listeners:
    broker_url: "broker-1:6651"
    connect_url: "http://proxy:6650"
meta_store:
  data_dir: "./meta"
  seed_nodes: ["127.0.0.1:7651"]
bootstrap_namespaces:
  - default
  - orders
auto_create_topics: false
admin_tls: false
auth:
  mode: none
  tls:
    cert_file: "./cert/server-cert.pem"
    key_file: "./cert/server-key.pem"
    ca_file: "./cert/ca-cert.pem"
  jwt:
    secret_key: "hush"
    issuer: "danube-auth"
    expiration_time: 7200
  super_admins: ["admin"]
load_manager:
  assignment_strategy: "fair"
  load_report_interval_seconds: 10
  rebalancing:
    enabled: true
    aggressiveness: "aggressive"
    check_interval_seconds: 60
    max_moves_per_hour: 20
    cooldown_seconds: 30
    min_brokers_for_rebalance: 3
    min_topic_age_seconds: 120
    blacklist_topics: ["/system/*"]
storage:
  mode: local
  local_wal_root: "./wal"
  metadata_prefix: "/danube"
  local_retention:
    time_minutes: 1440
    size_mb: 1024
    check_interval_minutes: 1
  wal:
    rotation:
      max_bytes: 67108864
      max_hours: 24
    advanced:
      cache_capacity: 2048
      file_sync:
        interval_ms: 1000
        max_batch_bytes: 1048576
dispatch:
  max_unacked_messages: 100
policies:
  max_producers_per_topic: 1
  max_subscriptions_per_topic: 2
  max_consumers_per_topic: 3
  max_consumers_per_subscription: 4
  max_publish_rate: 0
  max_subscription_dispatch_rate: 6
  max_message_size: 1048576
"""


def refused(text: str, **more: object) -> str:
    with pytest.raises(InvalidRequest) as caught:
        load_config(text, **more)  # type: ignore[arg-type]
    return str(caught.value)


def test_the_defaults_are_those_of_the_documentation() -> None:
    config = load_config(MINIMAL)
    assert str(config.broker.client_address) == "127.0.0.1:6650"
    assert str(config.broker.admin_address) == "127.0.0.1:50051"
    assert config.broker.ports.raft == 7650
    assert config.broker.prometheus_address is None
    assert config.meta_store.data_dir == "./danube-data/raft"
    assert config.storage.mode == "local"
    assert config.storage.local_wal_root == "./danube-data/wal"
    assert config.auto_create_topics is True
    assert config.auth.mode == "none"
    assert config.dispatch.max_unacked_messages == 10
    assert config.policies == Policies(max_message_size=MESSAGE_BYTES_MAX)
    assert config.load_manager.assignment_strategy == "balanced"


def test_a_complete_file_of_danube_is_read() -> None:
    config = load_config(COMPLETE)
    assert config.broker.ports.client == 6651
    assert config.bootstrap_namespaces == ("default", "orders")
    assert config.load_manager.rebalancing.blacklist_topics == ("/system/*",)
    assert config.load_manager.rebalancing.max_moves_per_cycle == 1
    assert config.policies.max_consumers_per_subscription == 4
    assert config.policies.max_publish_rate is None, "0 is unlimited"
    assert config.dispatch.max_unacked_messages == 100


@pytest.mark.parametrize(
    "section",
    ["cluster_name", "broker", "meta_store", "bootstrap_namespaces", "auth", "storage", "policies"],
)
def test_the_required_sections_are_required(section: str) -> None:
    lines = [line for line in MINIMAL.splitlines() if not line.startswith(section)]
    assert refused("\n".join(lines)) == f"{section} is required"


def test_zero_is_unlimited_in_policies_from_every_source_and_nowhere_else() -> None:
    text = MINIMAL.replace("policies: {}", "policies: {max_producers_per_topic: 0}")
    config = load_config(
        text,
        {"DANUBE_POLICIES__MAX_MESSAGE_SIZE": "0"},
        {"policies.max_consumers_per_topic": 0},
    )
    assert config.policies == Policies(max_message_size=None)
    assert "Expected int >= 1" in refused(text, overrides={"dispatch.max_unacked_messages": 0})
    assert "Expected int >= 1" in refused(
        MINIMAL.replace("policies: {}", "policies: {max_publish_rate: -1}")
    )
    assert "got bool" in refused(
        MINIMAL.replace("policies: {}", "policies: {max_publish_rate: false}")
    )


REFUSED = [
    ("auth.mode", "tls", "auth.mode: tls is not in this version"),
    ("admin_tls", True, "admin_tls: true is not in this version"),
    ("storage.write_buffer.backend", "valkey", "storage.write_buffer is not in this version"),
]


def test_the_page_names_what_is_refused_and_nothing_that_is_not() -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    (told,) = re.findall(r"- What this version does not do is refused .*?\n- ", page, re.DOTALL)
    said = [text.partition(" is not in")[0] for _, _, text in REFUSED]
    assert re.findall(r"`([^`]+)`", told) == said
    accepted = {
        "meta_store.seed_nodes": ["127.0.0.1:7650", "127.0.0.1:7651"],
        "storage.mode": "shared_fs",
        "storage.durable.root": "/srv/segments",
    }
    assert load_config(MINIMAL, {}, accepted).storage.mode == "shared_fs"


@pytest.mark.parametrize(("name", "value", "said"), REFUSED)
def test_what_this_version_cannot_do_is_refused_by_name(
    name: str, value: object, said: str
) -> None:
    with pytest.raises(NotSupported, match=said):
        load_config(MINIMAL, {}, {name: value})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("assignment_strategy", "round_robin", "Invalid enum value 'round_robin'"),
        ("load_report_interval_seconds", 0, "Expected int >= 1"),
        ("rebalancing.aggressiveness", "brutal", "Invalid enum value 'brutal'"),
        ("rebalancing.enabled", "yes", "write true or false"),
        ("rebalancing.check_interval_seconds", 0, "Expected int >= 1"),
        ("rebalancing.max_moves_per_hour", -1, "Expected int >= 0"),
        ("rebalancing.max_moves_per_cycle", 0, "Expected int >= 1"),
        ("rebalancing.cooldown_seconds", 1.5, "Expected int, got float"),
        ("rebalancing.min_brokers_for_rebalance", 0, "Expected int >= 1"),
        ("rebalancing.min_topic_age_seconds", -5, "Expected int >= 0"),
        ("rebalancing.blacklist_topics", ["orders"], "'orders' matches no topic; write a name"),
        ("rebalancing.max_moves", 3, "did you mean load_manager.rebalancing.max_moves_per_hour?"),
    ],
)
def test_limits_on_moves_that_make_no_sense_are_refused(
    name: str, value: object, said: str
) -> None:
    text = refused(MINIMAL, overrides={f"load_manager.{name}": value})
    assert said in text
    assert f"load_manager.{name}" in text


@pytest.mark.parametrize(
    ("mode", "root", "journal"),
    [
        ("shared_fs", "/mnt/share", "./danube-data/shared-fs-cache"),
        ("object_store", "s3://bucket/prefix", "./danube-data/object-store-cache"),
    ],
)
def test_with_remote_segments_the_journal_lies_beside_the_metadata(
    mode: str, root: str, journal: str
) -> None:
    settings = {"storage.mode": mode, "storage.durable.root": root}
    assert load_config(MINIMAL, {}, settings).storage.local_wal_root == journal.removeprefix("./")
    told = load_config(MINIMAL, {}, {**settings, "storage.local_wal_root": "/fast/disk"})
    assert told.storage.local_wal_root == "/fast/disk"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"storage.mode": "shared_fs"}, "needs a directory as storage.durable.root"),
        ({"storage.mode": "object_store"}, "needs storage.durable.root"),
        ({"storage.mode": "object_store", "storage.durable.root": "x"}, "storage.durable.backend"),
        (
            {"storage.mode": "shared_fs", "storage.durable.root": "./danube-data/raft"},
            "segments would lie in",
        ),
        ({"meta_store.data_dir": "/d/segments", "storage.local_wal_root": "/d/wal"}, "would lie"),
        ({"storage.metadata_prefix": "danube/"}, "storage.metadata_prefix"),
    ],
)
def test_segments_without_a_place_of_their_own_are_refused(settings, said: str) -> None:
    assert said in refused(MINIMAL, overrides=settings)


def test_secrets_of_a_store_do_not_show() -> None:
    settings = {"storage.durable.root": "s3://b", "storage.durable.secret_key": "hidden"}
    assert "hidden" not in repr(load_config(MINIMAL, {}, settings))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::"])
def test_without_credentials_only_this_machine_is_served(host: str) -> None:
    text = refused(MINIMAL, overrides={"broker.host": host})
    assert "the client port would listen on" in text
    assert "--insecure" in text
    load_config(
        MINIMAL,
        {},
        {"broker.host": host, "broker.advertised_listeners.broker_url": "north:6650"},
        insecure=True,
    )


@pytest.mark.parametrize(
    ("setting", "port"), [("broker.admin_host", "admin"), ("broker.prometheus_host", "prometheus")]
)
def test_no_other_port_is_open_to_strangers_either(setting: str, port: str) -> None:
    overrides = {setting: "0.0.0.0", "broker.ports.prometheus": 9040}
    assert f"the {port} port would listen on 0.0.0.0" in refused(MINIMAL, overrides=overrides)


def test_a_host_must_be_an_address() -> None:
    assert "broker.host must be an IP address" in refused(
        MINIMAL, overrides={"broker.host": "localhost"}
    )


def test_metadata_and_journal_need_directories_of_their_own() -> None:
    overrides = {"meta_store.data_dir": "./data/", "storage.local_wal_root": "./data"}
    assert "must be different directories" in refused(MINIMAL, overrides=overrides)


def test_a_bad_namespace_is_refused() -> None:
    assert "'a b'" in refused(MINIMAL, overrides={"bootstrap_namespaces": ["a b"]})


def test_older_names_of_settings_are_read() -> None:
    older = """storage:
  root: ./old
  metadata_root: /old
  object_store: {root: elsewhere}
  wal:
    cache_capacity: 7
    file_sync: {interval_ms: 8}
    retention: {size_mb: 9}
"""
    storage = load_config(MINIMAL.replace("storage: {}", older)).storage
    assert storage.local_wal_root == "./old"
    assert storage.metadata_prefix == "/old"
    assert storage.wal.advanced.cache_capacity == 7
    assert storage.wal.advanced.file_sync.interval_ms == 8
    assert storage.local_retention.size_mb == 9
    assert storage.durable is not None
    assert storage.durable.root == "elsewhere"


def test_settings_without_effect_are_told() -> None:
    config = load_config(MINIMAL, {}, {"storage.wal.advanced.cache_capacity": 7})
    assert [text.split(" ")[0] for text in config.storage.notices()] == ["storage.wal.advanced"]
    assert load_config(MINIMAL).storage.notices() == []


@pytest.mark.parametrize("size", [10_485_760, 0])
def test_a_limit_above_what_stock_clients_receive_is_told(size: int) -> None:
    (notice,) = load_config(MINIMAL, {}, {"policies.max_message_size": size}).notices()
    assert notice.startswith("policies.max_message_size ")
    assert "4 MiB" in notice
    assert load_config(MINIMAL).notices() == []


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in repr(load_config(COMPLETE))


def test_the_environment_overrides_the_file() -> None:
    environment = {"DANUBE_BROKER__PORTS__CLIENT": "6655", "DANUBE_ADMIN_TLS": "1"}
    assert load_config(COMPLETE, environment).broker.ports.client == 6655


def test_every_setting_can_be_written_in_the_environment() -> None:
    for path in all_paths(BrokerConfig):
        name = "DANUBE_" + ("_" if len(path) == 1 else "") + "__".join(path).upper()
        said = refused(MINIMAL, environment={name: "\0"}) if _is_number(path) else ""
        assert "is not a setting" not in said, dotted(path)


def _is_number(path: tuple[str, ...]) -> bool:
    return path[-1].startswith(("max_", "min_")) or path[-2:-1] == ("ports",)


# What clients are told.


def urls(**settings: object) -> tuple[str, str]:
    config = load_config(
        MINIMAL, {}, {f"broker.{k.replace('__', '.')}": v for k, v in settings.items()}
    )
    given = advertised_urls(config, config.broker.ports.client)
    return given.broker_url, given.connect_url


def test_by_default_clients_are_told_the_address_the_broker_listens_on() -> None:
    assert urls() == ("http://127.0.0.1:6650", "http://127.0.0.1:6650")
    assert urls(host="::1") == ("http://[::1]:6650", "http://[::1]:6650")


def test_clients_are_told_the_port_that_was_free() -> None:
    config = load_config(MINIMAL, {}, {"broker.ports.client": 0})
    assert advertised_urls(config, 41234).broker_url == "http://127.0.0.1:41234"


def test_a_scheme_is_added_and_a_trailing_slash_is_dropped() -> None:
    given = urls(
        advertised_listeners__broker_url="north:6650",
        advertised_listeners__connect_url="https://proxy:443/",
    )
    assert given == ("http://north:6650", "https://proxy:443")


def test_differing_urls_mean_a_proxy() -> None:
    config = load_config(COMPLETE)
    assert advertised_urls(config, 6651).proxy
    assert not advertised_urls(load_config(MINIMAL), 6650).proxy


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://0.0.0.0:6650", "wildcard"),
        ("[::]:6650", "wildcard"),
        ("http://broker_1:6650", "'_'"),
        ("north", "must have the form http://host:6650"),
        ("http://:6650", "must have the form"),
        ("ftp://north:6650", "must have the form"),
        ("http://north:6650/path", "must have the form"),
        ("http://north:99999", "must have the form"),
        ("[", "must have the form"),
    ],
)
def test_urls_that_some_client_cannot_use_are_refused(url: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        urls(advertised_listeners__broker_url=url)
    with pytest.raises(InvalidConfig, match=said):
        urls(advertised_listeners__connect_url=url)


def test_a_wildcard_address_is_never_advertised() -> None:
    with pytest.raises(InvalidConfig, match=r"advertised_listeners\.broker_url"):
        load_config(MINIMAL, {}, {"broker.host": "0.0.0.0"}, insecure=True)


# Without a file.


def test_a_standalone_broker_needs_a_directory_alone() -> None:
    config = standalone_config("/data")
    assert config.cluster_name == "STANDALONE"
    assert config.meta_store.data_dir == "/data/raft"
    assert config.storage.local_wal_root == "/data/wal"
    assert str(config.broker.client_address) == "127.0.0.1:6650"
    assert str(config.broker.admin_address) == "127.0.0.1:50051"
    assert config.broker.prometheus_address is None
    assert config.policies == Policies()


def test_a_standalone_broker_takes_flags_and_environment_too() -> None:
    config = standalone_config(
        "/data", {"DANUBE_BROKER__PORTS__ADMIN": "0"}, {"broker.ports.client": 0}
    )
    assert config.broker.ports.client == 0
    assert config.broker.ports.admin == 0
