"""The settings of all tables, kept with their topics at the broker."""

from pydanube.errors import NotFound
from pydanube.spark.brokers import Brokers
from pydanube.spark.options import Access
from pydanube.tables.settings import PROPERTY, TableSetting, decode_setting, encode_setting
from pydanube.tables.topic_source import SHORT, BrokerTopic
from pydanube.wire.flight.descriptors import (
    GetPropertyAction,
    PropertyAnswer,
    SetPropertyAction,
)


class TableBook:
    """Reads and changes which topics are tables. Blocks."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._brokers = Brokers(access, SHORT)

    def all(self) -> dict[str, TableSetting]:
        """Return the settings of all topics that are tables, by topic."""
        action = GetPropertyAction(name=PROPERTY)
        answer = self._brokers.act("property.get", action, PropertyAnswer)
        return {topic: decode_setting(topic, text) for topic, text in sorted(answer.topics.items())}

    def get(self, topic: str) -> TableSetting:
        """Return the setting of one topic."""
        setting = self.all().get(topic)
        if setting is None:
            raise NotFound(
                f"topic {topic} is no table; make it one with danube table enable {topic}"
            )
        return setting

    def put(self, topic: str, setting: TableSetting) -> None:
        """Make a topic a table, or change how it is one."""
        self._set(topic, encode_setting(setting))

    def remove(self, topic: str) -> None:
        """Make a topic no table any more; the table stays, and knows how far it is."""
        self._set(topic, None)

    def latest_offsets(self, topic: str) -> dict[str, int]:
        """Return where all partitions of a topic end now."""
        states = BrokerTopic(self._access, topic).states()
        return {name: state.frontier for name, state in states.items()}

    def _set(self, topic: str, text: str | None) -> None:
        action = SetPropertyAction(topic=topic, name=PROPERTY, value=text)
        self._brokers.act("property.set", action, PropertyAnswer)
