"""The flags of `danube broker`: which belong together, and what they set."""

import pytest

from pydanube.broker.config import BrokerConfig
from pydanube.broker.flags import BrokerFlags, config_from_flags
from pydanube.errors import InvalidRequest, NotSupported
from tests.unit.broker.test_config import MINIMAL


def standalone(**flags: object) -> BrokerConfig:
    given = BrokerFlags(mode="standalone", data_dir="/data", **flags)  # type: ignore[arg-type]
    return config_from_flags(given, {}, None)


def test_a_cluster_needs_a_file() -> None:
    with pytest.raises(InvalidRequest, match="--config-file"):
        config_from_flags(BrokerFlags(), {}, None)


def test_a_standalone_broker_needs_a_directory() -> None:
    with pytest.raises(InvalidRequest, match="--data-dir"):
        config_from_flags(BrokerFlags(mode="standalone"), {}, None)


def test_a_standalone_broker_keeps_everything_below_its_directory() -> None:
    config = standalone()
    assert config.meta_store.data_dir == "/data/raft"
    assert config.storage.local_wal_root == "/data/wal"


def test_a_standalone_broker_refuses_a_file_and_seeds() -> None:
    with pytest.raises(InvalidRequest, match="--config-file belongs to --mode cluster"):
        standalone(config_file="x.yml")
    with pytest.raises(InvalidRequest, match="--seed-nodes belongs to --mode cluster"):
        standalone(seed_nodes="a:7650")


def test_edge_is_not_there_yet() -> None:
    with pytest.raises(NotSupported, match="--mode edge"):
        config_from_flags(BrokerFlags(mode="edge", data_dir="/data"), {}, None)


def test_a_broker_with_a_file_belongs_to_a_cluster_be_it_of_one() -> None:
    assert config_from_flags(BrokerFlags(), {}, MINIMAL).is_clustered
    assert config_from_flags(BrokerFlags(join=True), {}, MINIMAL).is_clustered
    assert config_from_flags(BrokerFlags(seed_nodes="127.0.0.1:7650"), {}, MINIMAL).is_clustered
    assert not standalone().is_clustered
    with pytest.raises(InvalidRequest, match="--join belongs to --mode cluster"):
        standalone(join=True)


def test_each_address_binds_its_own_service() -> None:
    config = standalone(
        broker_addr="127.0.0.2:1", admin_addr="[::1]:2", prom_exporter="127.0.0.3:3"
    )
    assert str(config.broker.client_address) == "127.0.0.2:1"
    assert str(config.broker.admin_address) == "[::1]:2"
    assert str(config.broker.prometheus_address) == "127.0.0.3:3"


def test_opening_the_client_port_leaves_the_admin_port_closed() -> None:
    config = standalone(broker_addr="0.0.0.0:1", advertised_addr="north:1", insecure=True)
    assert str(config.broker.admin_address) == "127.0.0.1:50051"


def test_only_the_port_of_the_raft_address_counts() -> None:
    config = standalone(raft_addr="10.0.0.1:7777")
    assert config.broker.ports.raft == 7777
    assert config.broker.host == "127.0.0.1"


def test_an_advertised_address_sets_both_urls() -> None:
    given = standalone(advertised_addr="north:6650").broker.advertised_listeners
    assert given.broker_url == given.connect_url == "http://north:6650"


def test_a_connect_url_sets_its_own_alone() -> None:
    given = standalone(advertised_addr="north:6650", connect_url="proxy:1").broker
    assert given.advertised_listeners.broker_url == "http://north:6650"
    assert given.advertised_listeners.connect_url == "http://proxy:1"


def test_in_cluster_mode_the_directory_is_that_of_the_metadata() -> None:
    flags = BrokerFlags(config_file="x.yml", data_dir="/meta", seed_nodes="127.0.0.1:7650")
    config = config_from_flags(flags, {}, MINIMAL)
    assert config.meta_store.data_dir == "/meta"
    assert config.meta_store.seed_nodes == ("127.0.0.1:7650",)
    assert config.storage.local_wal_root == "./danube-data/wal"


def test_flags_win_over_the_environment() -> None:
    flags = BrokerFlags(config_file="x.yml", broker_addr="127.0.0.1:7")
    config = config_from_flags(flags, {"DANUBE_BROKER__PORTS__CLIENT": "8"}, MINIMAL)
    assert config.broker.ports.client == 7


def test_an_open_address_needs_the_flag_that_accepts_it() -> None:
    with pytest.raises(InvalidRequest, match="--insecure"):
        standalone(broker_addr="0.0.0.0:6650", advertised_addr="north:6650")
    standalone(broker_addr="0.0.0.0:6650", advertised_addr="north:6650", insecure=True)


@pytest.mark.parametrize("text", ["6650", "127.0.0.1", "localhost:6650", "127.0.0.1:x", ":6650"])
def test_a_bad_address_is_named_with_its_flag(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--broker-addr"):
        standalone(broker_addr=text)
