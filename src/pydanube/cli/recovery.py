"""What `danube recover` does with the real machine."""

from collections.abc import Mapping, Sequence

from pydanube.broker.config import BrokerConfig
from pydanube.broker.recovering import RecoveryReport, recover_metadata
from pydanube.errors import InvalidRequest
from pydanube.model.ids import TopicId
from pydanube.model.names import check_topic_name
from pydanube.runtime.machine import this_machine


async def run_recovery(
    config: BrokerConfig, *, apply: bool, names: Mapping[TopicId, str], doubtful: bool
) -> RecoveryReport:
    """Look at a stopped broker's files, and bring in what its metadata lack if told so."""
    machine = this_machine()
    peers = None
    if config.is_clustered:
        from pydanube.broker.peers import system_peers

        peers = await system_peers(config, machine)
    return await recover_metadata(
        config, machine, peers, apply=apply, names=names, doubtful=doubtful
    )


def names_by_id(given: Sequence[str]) -> dict[TopicId, str]:
    """Read what --name says."""
    names = {}
    for each in given:
        number, _, name = each.partition("=")
        if not number.isdecimal():
            raise InvalidRequest(f"--name {each} must have the form ID=/NAMESPACE/TOPIC")
        names[TopicId(int(number))] = check_topic_name(name)
    return names
