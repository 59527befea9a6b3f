"""The broker's configuration: `danube_broker.yml`, key by key, and the rules between its keys.

Files written for Danube are read unchanged. What this version cannot do is refused when the broker
starts, with a sentence that says so; nothing is accepted and then ignored.
"""

import posixpath
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from msgspec import Meta, Struct
from typing_extensions import override

from pydanube.balance.config import LoadManagerConfig
from pydanube.broker.addresses import (
    Address,
    AdvertisedUrls,
    check_bind_host,
    check_url,
    default_url,
)
from pydanube.broker.config_text import SettingsReader
from pydanube.broker.connections import Connections
from pydanube.broker.errors import InvalidConfig
from pydanube.cluster.mirrors.settings import MirrorSettings
from pydanube.errors import InvalidRequest, NotSupported
from pydanube.model.names import check_namespace_name
from pydanube.model.policies import MESSAGE_BYTES_MAX, DispatchConfig, Policies
from pydanube.storage.config import StorageConfig
from pydanube.storage.segments.location import directory_root
from pydanube.wire.http2.tls import TlsPaths

NOTHING: Mapping[str, str] = MappingProxyType({})

Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[int, Meta(ge=1)]

_LEGACY_PLACES = {
    "storage.root": "storage.local_wal_root",
    "storage.cache_root": "storage.local_wal_root",
    "storage.wal.dir": "storage.local_wal_root",
    "storage.metadata_root": "storage.metadata_prefix",
    "storage.wal.cache_capacity": "storage.wal.advanced.cache_capacity",
    "storage.wal.file_sync": "storage.wal.advanced.file_sync",
    "storage.wal.retention": "storage.local_retention",
    "storage.object_store": "storage.durable",
}


class Ports(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ports of the broker's services. 0 takes any free port."""

    client: Annotated[
        Port, Meta(description="Producers, consumers, lookup, health, schema registry.")
    ] = 6650
    admin: Annotated[Port, Meta(description="Administration.")] = 50051
    raft: Annotated[Port, Meta(description="Consensus between brokers; unused by one broker.")] = (
        7650
    )
    prometheus: Annotated[
        Port | None,
        Meta(description="/metrics, /healthz and /readyz over HTTP; none serves them nowhere."),
    ] = None


class AdvertisedListeners(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The URLs given to clients. A scheme is added where it is missing."""

    broker_url: Annotated[
        str | None,
        Meta(description="Names this broker; by default the address it listens on."),
    ] = None
    connect_url: Annotated[
        str | None,
        Meta(
            description="Where clients connect; by default `broker_url`. When it differs, a proxy "
            "stands between and routes by the header `x-danube-broker-url`."
        ),
    ] = None


class Listeners(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the services listen."""

    host: Annotated[
        str, Meta(description="IP address all services listen on. Names are not resolved.")
    ] = "127.0.0.1"
    client_host: Annotated[
        str | None, Meta(description="Another address for the client port. PyDanube's own key.")
    ] = None
    admin_host: Annotated[
        str | None, Meta(description="Another address for the admin port. PyDanube's own key.")
    ] = None
    prometheus_host: Annotated[
        str | None, Meta(description="Another address for the metrics port. PyDanube's own key.")
    ] = None
    ports: Ports = Ports()
    connections: Connections = Connections()
    advertised_listeners: AdvertisedListeners = AdvertisedListeners()

    @property
    def client_address(self) -> Address:
        """Where clients are served."""
        return Address(self.client_host or self.host, self.ports.client)

    @property
    def admin_address(self) -> Address:
        """Where administration is served."""
        return Address(self.admin_host or self.host, self.ports.admin)

    @property
    def raft_address(self) -> Address:
        """Where other brokers are served."""
        return Address(self.host, self.ports.raft)

    @property
    def prometheus_address(self) -> Address | None:
        """Where metrics and health are served, if at all."""
        port = self.ports.prometheus
        return None if port is None else Address(self.prometheus_host or self.host, port)


class EtcdConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where etcd is, for `meta_store.backend: etcd`. PyDanube's own section."""

    endpoints: Annotated[
        tuple[str, ...],
        Meta(description="URLs of its servers; each is tried when the one before fails."),
    ] = ("http://127.0.0.1:2379",)
    prefix: Annotated[
        str | None,
        Meta(description="Everything lies below it; by default `/pydanube/` and the cluster name."),
    ] = None
    ca_file: Annotated[
        str | None, Meta(description="Certificates to trust, PEM; by default the system's.")
    ] = None
    cert_file: Annotated[str | None, Meta(description="Certificate of this broker, PEM.")] = None
    key_file: Annotated[str | None, Meta(description="Its private key, PEM.")] = None

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise InvalidConfig("meta_store.etcd.endpoints names no server")
        for endpoint in self.endpoints:
            if not endpoint.startswith(("http://", "https://")):
                raise InvalidConfig(
                    f"meta_store.etcd.endpoints: {endpoint} is no URL such as http://127.0.0.1:2379"
                )
        if (self.cert_file is None) != (self.key_file is None):
            raise InvalidConfig(
                "meta_store.etcd.cert_file and meta_store.etcd.key_file belong together"
            )


class MetaStoreConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where namespaces, topics, subscriptions and policies are kept."""

    backend: Annotated[
        Literal["raft", "etcd", "local"],
        Meta(
            description="`raft`: by the brokers themselves, be it one or several; `etcd`: in an "
            "etcd, for all brokers of a cluster; `local`: in a log of one broker that no other "
            "can join, as with `--mode standalone`. PyDanube's own key."
        ),
    ] = "raft"
    data_dir: Annotated[
        str,
        Meta(
            min_length=1,
            description="Directory of the metadata log; with etcd, of the broker's number.",
        ),
    ] = "./danube-data/raft"
    seed_nodes: Annotated[
        tuple[str, ...],
        Meta(
            description="Raft addresses, host:port, of all first members of the cluster, this "
            "broker included; without any, the broker founds a cluster of one, which others join."
        ),
    ] = ()
    join: Annotated[
        bool,
        Meta(
            description="Found no cluster: wait to be added to one (`danube cluster add-node`). "
            "PyDanube's own key."
        ),
    ] = False
    etcd: EtcdConfig = EtcdConfig()

    def __post_init__(self) -> None:
        if self.backend == "etcd" and (self.seed_nodes or self.join):
            raise InvalidConfig(
                "meta_store.seed_nodes and meta_store.join are for backend: raft; brokers on etcd "
                "find each other there"
            )


class TlsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Certificates. With all three files, brokers talk to each other over mutual TLS only.

    Files that are renewed are taken into use within seconds.
    """

    cert_file: Annotated[
        str | None,
        Meta(
            description="Certificate of the broker, PEM; valid for its host name or address, for "
            "servers and for clients."
        ),
    ] = None
    key_file: Annotated[str | None, Meta(description="Its private key, PEM.")] = None
    ca_file: Annotated[
        str | None, Meta(description="Who signs the certificates of brokers, PEM.")
    ] = None

    def __post_init__(self) -> None:
        given = [self.cert_file, self.key_file, self.ca_file]
        if any(given) and not all(given):
            raise InvalidConfig(
                "auth.tls needs cert_file, key_file and ca_file; some of them are missing"
            )

    @property
    def paths(self) -> TlsPaths | None:
        """The files, if they are given."""
        if self.cert_file is None or self.key_file is None:
            return None
        return TlsPaths(
            certificate=self.cert_file, key=self.key_file, client_authorities=self.ca_file
        )


class JwtConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens; not used in this version."""

    secret_key: Annotated[str | None, Meta(description="Shared secret of HS256 tokens.")] = None
    issuer: Annotated[str, Meta(description="The `iss` every token must carry.")] = "danube-auth"
    expiration_time: Annotated[
        Seconds, Meta(description="Seconds a token of the old key exchange is valid.")
    ] = 3600

    @override
    def __repr__(self) -> str:
        return "JwtConfig(…)"  # The secret must never reach a log.


class AuthConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may do what. This version has the mode `none` alone."""

    mode: Annotated[
        Literal["none", "tls"], Meta(description="`none`: everybody may do everything.")
    ] = "none"
    tls: TlsConfig = TlsConfig()
    jwt: JwtConfig = JwtConfig()
    super_admins: Annotated[
        tuple[str, ...], Meta(description="Names that need no permission.")
    ] = ()


class ClusterConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How soon brokers of a cluster notice that one is gone. PyDanube's own section."""

    lease_ms: Annotated[
        int,
        Meta(
            ge=300,
            description="A broker that is not heard of for so long has lost its topics; it stops "
            "by itself after three quarters of that.",
        ),
    ] = 1_500
    heartbeat_ms: Annotated[int, Meta(ge=20, description="Between heartbeats of the leader.")] = 150
    election_ms: Annotated[
        int,
        Meta(
            ge=100,
            description="Without a heartbeat for this long, up to twice as long, brokers elect "
            "another leader; several heartbeats at least.",
        ),
    ] = 700


class BrokerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. Build it with `load_config` or `standalone_config`, which check it."""

    cluster_name: Annotated[
        str, Meta(min_length=1, description="The same on all brokers of a cluster.")
    ]
    broker: Listeners
    meta_store: MetaStoreConfig
    bootstrap_namespaces: Annotated[
        tuple[str, ...],
        Meta(description="Namespaces created at start, besides `default` and `system`."),
    ]
    auto_create_topics: Annotated[bool, Meta(description="Producers may create topics.")] = True
    admin_tls: Annotated[
        bool, Meta(description="TLS on the admin port. This version refuses `true`.")
    ] = False
    auth: AuthConfig
    cluster: ClusterConfig = ClusterConfig()
    mirrors: MirrorSettings = MirrorSettings()
    load_manager: LoadManagerConfig = LoadManagerConfig()
    storage: StorageConfig
    dispatch: DispatchConfig = DispatchConfig()
    policies: Annotated[Policies, Meta(description="What namespaces start with; 0 is unlimited.")]

    def __post_init__(self) -> None:
        self._namespaces_have_names()
        self._hosts_are_addresses()
        self._metadata_and_journal_lie_apart()
        self._segments_have_a_place()
        self._elections_wait_for_heartbeats()
        self._copies_have_shared_segments()

    @property
    def is_clustered(self) -> bool:
        """Whether there are other brokers, or may be some day."""
        meta_store = self.meta_store
        return meta_store.backend != "local" or bool(meta_store.seed_nodes) or meta_store.join

    def notices(self) -> list[str]:
        """Return what to tell the operator when the broker starts: what may not be meant so."""
        found = self.storage.notices()
        size_max = self.policies.max_message_size
        if size_max is None or size_max > MESSAGE_BYTES_MAX:
            allowed = "has no limit" if size_max is None else f"is {size_max}"
            found.append(
                f"policies.max_message_size {allowed}, but stock clients receive messages of at "
                "most 4 MiB, attributes included; what their consumers cannot take fails by the "
                f"failure policy of the subscription. Set it to {MESSAGE_BYTES_MAX} or less, or "
                "let all consumers receive more"
            )
        return found

    def _copies_have_shared_segments(self) -> None:
        wanted = max(self.mirrors.replicas or 1, self.policies.replicas or 1)
        if wanted > 1 and self.storage.mode == "local":
            raise InvalidConfig(
                f"mirrors.replicas or policies.replicas is {wanted}, but with storage.mode local "
                "other brokers cannot read a topic's segments; set storage.mode to shared_fs or "
                "object_store, or replicas to 1"
            )

    def _elections_wait_for_heartbeats(self) -> None:
        if self.cluster.election_ms < 2 * self.cluster.heartbeat_ms:
            raise InvalidConfig(
                f"cluster.election_ms is {self.cluster.election_ms}, which leaves no time for two "
                f"heartbeats of cluster.heartbeat_ms = {self.cluster.heartbeat_ms}"
            )

    def _namespaces_have_names(self) -> None:
        for name in self.bootstrap_namespaces:
            check_namespace_name(name)

    def _hosts_are_addresses(self) -> None:
        for name in ("host", "client_host", "admin_host", "prometheus_host"):
            host = getattr(self.broker, name)
            if host is not None:
                check_bind_host(host, f"broker.{name}")

    def _metadata_and_journal_lie_apart(self) -> None:
        if self.meta_store.data_dir.rstrip("/") == self.storage.local_wal_root.rstrip("/"):
            raise InvalidConfig(
                "meta_store.data_dir and storage.local_wal_root must be different directories"
            )

    def _segments_have_a_place(self) -> None:
        try:
            root = directory_root(self.storage)
        except InvalidRequest as error:
            raise InvalidConfig(str(error)) from None
        taken = (self.meta_store.data_dir.rstrip("/"), self.storage.local_wal_root.rstrip("/"))
        if root is not None and root.rstrip("/") in taken:
            raise InvalidConfig(
                f"segments would lie in {root}, where metadata or journal are; choose another "
                "directory (storage.durable.root, or storage.local_wal_root in local mode)"
            )


def load_config(
    text: str,
    environment: Mapping[str, str] = NOTHING,
    overrides: Mapping[str, object] = NOTHING,
    *,
    insecure: bool = False,
) -> BrokerConfig:
    """Read the text of a configuration file.

    `overrides`, by dotted names, win over `environment`, which wins over the text. Raises
    InvalidConfig naming every problem, or NotSupported for what this version does not do.
    """
    reader = SettingsReader(BrokerConfig)
    reader.add_text(text, environment)
    return _finish(reader, environment, overrides, insecure=insecure)


def standalone_config(
    data_dir: str,
    environment: Mapping[str, str] = NOTHING,
    overrides: Mapping[str, object] = NOTHING,
    *,
    insecure: bool = False,
) -> BrokerConfig:
    """Return what one broker runs with that was given a directory and nothing else."""
    reader = SettingsReader(BrokerConfig)
    built_in = {
        "cluster_name": "STANDALONE",
        "broker.host": "127.0.0.1",
        "meta_store.backend": "local",
        "meta_store.data_dir": f"{data_dir}/raft",
        "bootstrap_namespaces": ["default"],
        "auth.mode": "none",
        "storage.local_wal_root": f"{data_dir}/wal",
        "policies": None,
    }
    reader.add_values(built_in, "built in")
    return _finish(reader, environment, overrides, insecure=insecure)


def advertised_urls(config: BrokerConfig, client_port: int) -> AdvertisedUrls:
    """Return the URLs to give to clients of a broker that listens on `client_port`."""
    given = config.broker.advertised_listeners
    place = "broker.advertised_listeners"
    if given.broker_url is None:
        broker_url = default_url(Address(config.broker.client_address.host, client_port))
    else:
        broker_url = check_url(given.broker_url, f"{place}.broker_url")
    if given.connect_url is None:
        return AdvertisedUrls(broker_url, broker_url)
    return AdvertisedUrls(broker_url, check_url(given.connect_url, f"{place}.connect_url"))


def _finish(
    reader: SettingsReader[BrokerConfig],
    environment: Mapping[str, str],
    overrides: Mapping[str, object],
    *,
    insecure: bool,
) -> BrokerConfig:
    reader.add_environment(environment)
    reader.add_values(overrides, "command line")
    for old, new in _LEGACY_PLACES.items():
        reader.move(tuple(old.split(".")), tuple(new.split(".")))
    # Danube writes unlimited as 0; inside it is None.
    reader.replace(("policies",), 0, None)
    _derive_journal_root(reader)
    config = reader.build()
    _refuse_the_unsupported(config)
    if not insecure:
        _refuse_exposure(config)
    advertised_urls(config, config.broker.ports.client)
    return config


_CACHES = {"shared_fs": "shared-fs-cache", "object_store": "object-store-cache"}


def _derive_journal_root(reader: SettingsReader[BrokerConfig]) -> None:
    """Place the journal of the modes with remote segments beside the metadata, unless told."""
    cache = _CACHES.get(str(reader.value("storage.mode")))
    data_dir = reader.value("meta_store.data_dir") or MetaStoreConfig().data_dir
    if cache and isinstance(data_dir, str) and reader.value("storage.local_wal_root") is None:
        root = posixpath.join(posixpath.dirname(posixpath.normpath(data_dir)), cache)
        reader.add_values({"storage.local_wal_root": root}, "derived from meta_store.data_dir")


def _refuse_the_unsupported(config: BrokerConfig) -> None:
    if config.auth.mode != "none":
        raise NotSupported(
            "auth.mode: tls is not in this version; use auth.mode: none on a loopback address"
        )
    if config.admin_tls:
        raise NotSupported("admin_tls: true is not in this version; the admin port has no TLS yet")
    if config.storage.write_buffer is not None:
        raise NotSupported(
            "storage.write_buffer is not in this version; leave it out, for what is acknowledged "
            "is on disk already"
        )


def _refuse_exposure(config: BrokerConfig) -> None:
    """Without credentials, only this machine may reach the broker."""
    is_open = config.is_clustered and config.auth.tls.paths is None
    raft = config.broker.raft_address if is_open else None
    addresses = {
        "client": config.broker.client_address,
        "admin": config.broker.admin_address,
        "prometheus": config.broker.prometheus_address,
        "raft": raft,
    }
    for name, address in addresses.items():
        if address is not None and not address.is_loopback:
            raise InvalidConfig(
                f"the {name} port would listen on {address}, open to everybody who can reach this "
                "machine, for auth.mode is none; listen on 127.0.0.1, or start with --insecure to "
                "accept that"
            )
