"""Sessions of a Spark Connect server: Spark lives there, and this process only asks for things."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydanube.errors import InvalidRequest, NotSupported, Unavailable
from pydanube.runtime.blocking import can_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ANSWER_SECONDS_MAX = 10.0


def is_connected(session: "SparkSession | DataFrame") -> bool:
    """Tell whether a session, or a frame of it, belongs to a Spark Connect server."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def open_session(url: str, defaults: Mapping[str, str], given: Mapping[str, str]) -> "SparkSession":
    """Return a session of the server at a URL.

    `defaults` are set as far as a session may change them. What was `given` must hold: a setting
    that the server has from its start, with another value, is refused.
    """
    try:
        from pyspark.sql import SparkSession
        from pyspark.sql.connect.client.core import DefaultChannelBuilder
    except ImportError as error:
        raise NotSupported(
            f"Spark Connect needs more than is installed: pip install 'pydanube[spark]' ({error})"
        ) from error
    from pyspark.errors import PySparkException

    try:
        host, _, port = DefaultChannelBuilder(url).endpoint.rpartition(":")
    except (PySparkException, ValueError) as error:
        raise InvalidRequest(f"{url} is no address of a Spark Connect server: {error}") from None
    if not can_connect(host.strip("[]"), int(port), ANSWER_SECONDS_MAX):
        raise Unavailable(
            f"no Spark Connect server answers at {url}; start one there (danube spark server), or "
            "correct the address"
        )
    try:
        running = SparkSession.builder.remote(url).getOrCreate()
    except PySparkException as error:
        raise InvalidRequest(
            f"no session of {url}: {error}. A process has one Spark: stop the session that runs, "
            "or use another process"
        ) from error
    for key, value in defaults.items():
        if key not in given and running.conf.isModifiable(key):
            running.conf.set(key, value)
    for key, value in given.items():
        _insist(running, key, value)
    return running


def _insist(running: "SparkSession", key: str, value: str) -> None:
    from pyspark.errors import PySparkException

    try:
        if running.conf.get(key, None) != value:
            running.conf.set(key, value)
    except PySparkException:
        found = running.conf.get(key, None)
        raise InvalidRequest(
            f"{key} belongs to the Spark Connect server, and is {found or 'not set'} there; start "
            f"the server with --conf {key}={value}, or leave it out"
        ) from None
