"""Names of topics with `*` in them, as operators write them."""

import re
from collections.abc import Iterable

from pydanube.dispatch.globs import Glob
from pydanube.model.names import NAME_CHARACTERS_MAX

_FORM = re.compile(r"/[\w*-]+/[\w*-]+")


class TopicPatterns:
    """Tells whether a topic matches one of several patterns.

    `*` stands for any characters, none included: /default/* is every topic of a namespace,
    /default/critical-* are some of them.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        self._exact = frozenset(each for each in self.patterns if "*" not in each)
        # Patterns and names have two slashes each, so that no star can stand for one.
        self._globs = [Glob(each) for each in self.patterns if "*" in each]

    def match(self, topic: str) -> bool:
        """Tell whether any pattern matches the whole name."""
        return topic in self._exact or any(glob.matches(topic) for glob in self._globs)


def check_topic_pattern(pattern: str, setting: str) -> str:
    """Return the pattern if a topic could match it; name the setting otherwise."""
    if not _FORM.fullmatch(pattern) or len(pattern) > NAME_CHARACTERS_MAX:
        raise ValueError(
            f"{setting}: {pattern[:NAME_CHARACTERS_MAX]!r} matches no topic; write a name such as "
            "/default/orders, or a pattern such as /default/* or /default/critical-*"
        )
    return pattern
