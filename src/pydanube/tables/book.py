"""The settings of all tables, kept at the broker: with their topics, or with one for patterns."""

import msgspec

from pydanube.errors import Corruption, NotFound
from pydanube.spark.brokers import Brokers
from pydanube.spark.options import Access
from pydanube.spark.source.rows import Place
from pydanube.spark.source.topics import FrontierAnswer
from pydanube.tables.settings import (
    NONE,
    PATTERNS_PROPERTY,
    PATTERNS_TOPIC,
    PROPERTY,
    TableSetting,
    chosen_by,
    decode_setting,
    encode_setting,
    is_pattern,
    pattern_expression,
)
from pydanube.tables.topic_source import SHORT, BrokerTopic
from pydanube.wire.flight.descriptors import (
    FrontierAction,
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
        """Return the settings of all topics that are tables, by topic.

        A topic's own setting wins over those of patterns.
        """
        own = self._get(PROPERTY)
        found = {topic: decode_setting(topic, text) for topic, text in own.items() if text != NONE}
        patterns = self.patterns()
        for pattern in patterns:
            for topic in self.topics_of(pattern):
                setting = chosen_by(patterns, topic)
                if topic not in own and setting is not None:
                    found[topic] = setting
        return dict(sorted(found.items()))

    def get(self, topic: str) -> TableSetting:
        """Return the setting of one topic."""
        setting = self.all().get(topic)
        if setting is None:
            raise NotFound(
                f"topic {topic} is no table; make it one with danube table enable {topic}"
            )
        return setting

    def put(self, topic: str, setting: TableSetting) -> None:
        """Make a topic, or all of a pattern, a table, or change how it is one.

        The topic of patterns has to exist.
        """
        if is_pattern(topic):
            self._set_patterns({**self.patterns(), topic: setting})
        else:
            self._set(topic, PROPERTY, encode_setting(setting))

    def remove(self, topic: str) -> None:
        """Make a topic no table any more; the table stays, and knows how far it is."""
        patterns = self.patterns()
        if is_pattern(topic):
            if topic not in patterns:
                known = ", ".join(sorted(patterns)) or "there is none"
                raise NotFound(f"no table was enabled for pattern {topic} ({known})")
            del patterns[topic]
            self._set_patterns(patterns)
            return
        self._set(topic, PROPERTY, None if chosen_by(patterns, topic) is None else NONE)

    def patterns(self) -> dict[str, TableSetting]:
        """Return the settings of patterns."""
        text = self._get(PATTERNS_PROPERTY, PATTERNS_TOPIC).get(PATTERNS_TOPIC, "{}")
        try:
            return msgspec.json.decode(text, type=dict[str, TableSetting])
        except msgspec.MsgspecError as error:
            raise Corruption(
                f"property {PATTERNS_PROPERTY} of topic {PATTERNS_TOPIC} is not readable "
                f"({error}): enable the patterns anew"
            ) from error

    def topics_of(self, pattern: str) -> list[str]:
        """Return the reliable topics that a pattern matches now."""
        action = FrontierAction(pattern=pattern_expression(pattern))
        answer = self._brokers.act("frontier", action, FrontierAnswer)
        found = {Place.of(name).topic for name in answer.topics}
        return sorted(each for each in found if each != PATTERNS_TOPIC)

    def latest_offsets(self, topic: str) -> dict[str, int]:
        """Return where all partitions of a topic, or of all topics of a pattern, end now."""
        found: dict[str, int] = {}
        for each in self.topics_of(topic) if is_pattern(topic) else [topic]:
            states = BrokerTopic(self._access, each).states()
            found |= {name: state.frontier for name, state in states.items()}
        return found

    def _get(self, name: str, topic: str = ".*") -> dict[str, str]:
        action = GetPropertyAction(name=name, pattern=topic)
        return self._brokers.act("property.get", action, PropertyAnswer).topics

    def _set_patterns(self, patterns: dict[str, TableSetting]) -> None:
        text = msgspec.json.encode(dict(sorted(patterns.items()))).decode() if patterns else None
        self._set(PATTERNS_TOPIC, PATTERNS_PROPERTY, text)

    def _set(self, topic: str, name: str, text: str | None) -> None:
        action = SetPropertyAction(topic=topic, name=name, value=text)
        self._brokers.act("property.set", action, PropertyAnswer)
