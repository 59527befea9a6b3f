"""The flags of `danube broker`, named as Danube names them, and what they ask of the settings."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from pydanube.broker.addresses import check_url, parse_address
from pydanube.broker.config import BrokerConfig, load_config, standalone_config
from pydanube.broker.errors import InvalidConfig
from pydanube.errors import NotSupported

Mode = Literal["cluster", "standalone", "edge"]


class BrokerFlags(Struct, frozen=True, kw_only=True):
    """What was written on the command line. None: not given."""

    mode: Mode = "cluster"
    config_file: str | None = None
    broker_addr: str | None = None
    admin_addr: str | None = None
    prom_exporter: str | None = None
    raft_addr: str | None = None
    advertised_addr: str | None = None
    connect_url: str | None = None
    data_dir: str | None = None
    seed_nodes: str | None = None
    join: bool = False
    insecure: bool = False


def config_from_flags(
    flags: BrokerFlags, environment: Mapping[str, str], config_text: str | None
) -> BrokerConfig:
    """Return the configuration to run with; `config_text` is what `flags.config_file` holds."""
    if flags.mode == "edge":
        raise NotSupported("--mode edge is not in this version; use --mode standalone")
    overrides = _overrides(flags)
    if flags.mode == "standalone":
        if flags.config_file is not None:
            raise InvalidConfig(
                "--config-file belongs to --mode cluster; a standalone broker takes --data-dir, "
                "flags and environment variables"
            )
        for flag, given in (("--seed-nodes", flags.seed_nodes), ("--join", flags.join)):
            if given:
                raise InvalidConfig(f"{flag} belongs to --mode cluster")
        if not flags.data_dir:
            raise InvalidConfig("--mode standalone needs --data-dir, where the messages are kept")
        return standalone_config(flags.data_dir, environment, overrides, insecure=flags.insecure)
    if config_text is None:
        raise InvalidConfig(
            "--mode cluster needs --config-file; for one broker without a file use "
            "--mode standalone --data-dir DIRECTORY"
        )
    return load_config(config_text, environment, overrides, insecure=flags.insecure)


def _overrides(flags: BrokerFlags) -> dict[str, object]:
    overrides: dict[str, object] = {}
    if flags.broker_addr is not None:
        client = parse_address(flags.broker_addr, "--broker-addr")
        overrides |= {"broker.client_host": client.host, "broker.ports.client": client.port}
    if flags.admin_addr is not None:
        admin = parse_address(flags.admin_addr, "--admin-addr")
        overrides |= {"broker.admin_host": admin.host, "broker.ports.admin": admin.port}
    if flags.prom_exporter is not None:
        prom = parse_address(flags.prom_exporter, "--prom-exporter")
        overrides |= {"broker.prometheus_host": prom.host, "broker.ports.prometheus": prom.port}
    if flags.raft_addr is not None:
        # The bind address is always the broker's; Danube, too, takes only the port from here.
        overrides["broker.ports.raft"] = parse_address(flags.raft_addr, "--raft-addr").port
    if flags.advertised_addr is not None:
        url = check_url(flags.advertised_addr, "--advertised-addr")
        overrides["broker.advertised_listeners.broker_url"] = url
        overrides["broker.advertised_listeners.connect_url"] = url
    if flags.connect_url is not None:
        url = check_url(flags.connect_url, "--connect-url")
        overrides["broker.advertised_listeners.connect_url"] = url
    if flags.seed_nodes is not None:
        overrides["meta_store.seed_nodes"] = [
            node.strip() for node in flags.seed_nodes.split(",") if node.strip()
        ]
    if flags.join:
        overrides["meta_store.join"] = True
    if flags.mode == "cluster" and flags.data_dir is not None:
        overrides["meta_store.data_dir"] = flags.data_dir
    return overrides
