"""How brokers of a cluster talk to each other over real sockets."""

from pydanube.broker.config import BrokerConfig
from pydanube.broker.connections import plan_connections
from pydanube.broker.errors import InvalidConfig
from pydanube.broker.metadata import Peers
from pydanube.metadata.transport import RAFT_LIMITS
from pydanube.runtime.machine import Machine
from pydanube.wire.http2.channel import Http2Channel
from pydanube.wire.http2.engine import Http2Engine
from pydanube.wire.http2.limits import with_connections
from pydanube.wire.http2.tls import TlsFiles


async def system_peers(config: BrokerConfig, machine: Machine) -> Peers:
    """Return how brokers talk to each other over real sockets: with certificates, if there are."""
    paths = config.auth.tls.paths
    plan = plan_connections(machine.descriptors_max, config.broker.connections, is_clustered=True)
    limits = with_connections(RAFT_LIMITS, plan.raft)
    if paths is None:
        engine = Http2Engine(limits=limits, clock=machine.clock)
        return Peers(engine=engine, connect=Http2Channel)
    files = TlsFiles(machine.files, paths)
    try:
        await files.load()
    except OSError as error:
        raise InvalidConfig(f"the files of auth.tls cannot be used: {error}") from error

    def connect(address: str) -> Http2Channel:
        return Http2Channel(f"https://{address}", tls=files.calling)

    engine = Http2Engine(limits=limits, clock=machine.clock, tls=files)
    return Peers(engine=engine, connect=connect)
