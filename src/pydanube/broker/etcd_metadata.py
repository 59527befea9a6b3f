"""Opens the metadata of a broker whose cluster keeps them in etcd."""

import ssl

from msgspec import Struct

from pydanube.broker.config import BrokerConfig, EtcdConfig
from pydanube.broker.errors import InvalidConfig
from pydanube.errors import Conflict, Corruption, InvalidRequest
from pydanube.metadata.etcd_layout import EtcdLayout
from pydanube.metadata.etcd_store import EtcdMetadataStore
from pydanube.runtime.files import FileLock, read_whole, write_atomically
from pydanube.runtime.machine import Machine
from pydanube.wire.etcd.client import Connect, EtcdClient
from pydanube.wire.http2.channel import Http2Channel
from pydanube.wire.http2.limits import MIB, Http2Limits

IDENTITY_NAME = "etcd_identity"
LOCK_NAME = "etcd.lock"
# etcd takes offence at pings that come more often than every five seconds.
LIMITS = Http2Limits(message_bytes_max=64 * MIB, idle_seconds_max=8.0, ping_seconds_max=5.0)


class EtcdPlace(Struct, frozen=True, kw_only=True):
    """The store, and the lock on the broker's own directory."""

    store: EtcdMetadataStore
    lock: FileLock


async def open_etcd(config: BrokerConfig, machine: Machine) -> EtcdPlace:
    """Open the store; the directory remembers to which cluster this broker belongs.

    Conflict if another broker uses the directory, InvalidRequest if it holds metadata itself,
    Corruption if etcd does not hold the cluster any more, Unavailable if etcd is not reached.
    """
    directory = config.meta_store.data_dir
    await machine.files.make_directory(directory)
    lock = await machine.files.lock(f"{directory}/{LOCK_NAME}")
    if lock is None:
        raise Conflict(
            f"{directory} is in use by another process; stop that one, or choose a data directory "
            "of its own (meta_store.data_dir)"
        )
    try:
        return EtcdPlace(store=await _open(config, machine, directory), lock=lock)
    except BaseException:
        await lock.release()
        raise


async def _open(config: BrokerConfig, machine: Machine, directory: str) -> EtcdMetadataStore:
    names = await machine.files.list_names(directory)
    embedded = [name for name in names if name.endswith(".snapshot")]
    if embedded:
        raise InvalidRequest(
            f"{directory} holds the metadata of a broker that was not on etcd ({embedded[0]}): "
            "choose another directory (meta_store.data_dir), or leave meta_store.backend at raft"
        )
    path = f"{directory}/{IDENTITY_NAME}"
    expected = await read_whole(machine.files, path) if IDENTITY_NAME in names else None
    etcd = config.meta_store.etcd
    store = await EtcdMetadataStore.open(
        EtcdClient(etcd.endpoints, etcd_connect(etcd, machine)),
        machine.clock,
        EtcdLayout(etcd.prefix or f"/pydanube/{config.cluster_name}"),
        identity=b"%032x" % machine.randomness.below(2**128),
        founds=expected is None,
    )
    if expected is None:
        await write_atomically(machine.files, directory, IDENTITY_NAME, store.identity)
    elif store.identity != expected:
        await store.close()
        raise Corruption(
            f"etcd holds cluster {store.identity.decode(errors='replace')}, but this "
            f"broker belongs to {expected.decode(errors='replace')} (in {path}): "
            "correct meta_store.etcd, or give the broker an empty data directory"
        )
    return store


def etcd_connect(etcd: EtcdConfig, machine: Machine) -> Connect:
    """Return how etcd's servers are reached."""
    tls: ssl.SSLContext | None = None
    if any(endpoint.startswith("https://") for endpoint in etcd.endpoints):
        try:
            tls = ssl.create_default_context(cafile=etcd.ca_file)
            if etcd.cert_file is not None:
                tls.load_cert_chain(etcd.cert_file, etcd.key_file)
        except OSError as error:
            raise InvalidConfig(f"the TLS files of meta_store.etcd cannot be used: {error}") from (
                error
            )

    def connect(endpoint: str) -> Http2Channel:
        secure = tls if endpoint.startswith("https://") else None
        return Http2Channel(endpoint, tls=secure, limits=LIMITS, clock=machine.clock)

    return connect
