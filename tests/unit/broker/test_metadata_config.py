"""Settings of the metadata, and of certificates between brokers."""

import pytest

from pydanube.broker.config import BrokerConfig, standalone_config
from pydanube.broker.errors import InvalidConfig


def configured(**settings: object) -> BrokerConfig:
    overrides = {name.replace("__", "."): value for name, value in settings.items()}
    return standalone_config("/data", overrides=overrides)


def test_a_broker_on_etcd_belongs_to_a_cluster() -> None:
    assert not configured().is_clustered
    config = configured(meta_store__backend="etcd")
    assert config.is_clustered
    assert config.meta_store.etcd.endpoints == ("http://127.0.0.1:2379",)


def test_nodes_are_named_for_raft_alone() -> None:
    with pytest.raises(InvalidConfig, match="seed_nodes"):
        configured(meta_store__backend="etcd", meta_store__seed_nodes=["a:7650"])
    with pytest.raises(InvalidConfig, match="join"):
        configured(meta_store__backend="etcd", meta_store__join=True)


def test_an_endpoint_is_a_url() -> None:
    with pytest.raises(InvalidConfig, match="no URL"):
        configured(meta_store__etcd__endpoints=["127.0.0.1:2379"])
    with pytest.raises(InvalidConfig, match="names no server"):
        configured(meta_store__etcd__endpoints=[])


def test_certificate_and_key_belong_together() -> None:
    with pytest.raises(InvalidConfig, match="belong together"):
        configured(meta_store__etcd__cert_file="a.pem")
    with pytest.raises(InvalidConfig, match="some of them are missing"):
        configured(auth__tls__cert_file="a.pem", auth__tls__key_file="a.key")


def test_with_certificates_the_raft_port_may_be_open_to_other_machines() -> None:
    elsewhere = {
        "broker__host": "10.0.0.1",
        "broker__client_host": "127.0.0.1",
        "broker__admin_host": "127.0.0.1",
        "broker__prometheus_host": "127.0.0.1",
        "meta_store__seed_nodes": ["10.0.0.1:7650", "10.0.0.2:7650"],
    }
    with pytest.raises(InvalidConfig, match="the raft port would listen on"):
        configured(**elsewhere)
    files = {f"auth__tls__{name}_file": f"{name}.pem" for name in ("cert", "key", "ca")}
    assert configured(**elsewhere, **files).auth.tls.paths is not None
