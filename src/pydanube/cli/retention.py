"""`danube topics|namespaces retention` and `set-retention`: how long history stays."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

import click

from pydanube.cli.options import AdminSession, admin_options, topic_options
from pydanube.errors import InvalidRequest

if TYPE_CHECKING:
    from pydanube.model.policies import OwnRetention

_SECOND_MS = 1_000
_TIMES = {
    "ms": 1,
    "s": _SECOND_MS,
    "m": 60 * _SECOND_MS,
    "h": 3600 * _SECOND_MS,
    "d": 86400 * _SECOND_MS,
}
_SIZES = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def _quantity(text: str, units: dict[str, int]) -> int:
    """Return a whole number with a unit; 0 needs none."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = units.get(text[len(digits) :].lower())
    if text == "0":
        return 0
    if unit is None or not digits.isascii() or not digits.isdecimal():
        raise click.BadParameter(f"{text!r} is no number with one of {', '.join(units)}")
    return int(digits) * unit


def time(text: str) -> int:
    """Return milliseconds."""
    return _quantity(text, _TIMES)


def size(text: str) -> int:
    """Return bytes."""
    return _quantity(text, _SIZES)


def retention_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--time`, `--size` and `--wait/--force`, and call it with the rule."""

    @click.option(
        "--time",
        "time_ms",
        type=time,
        help="Messages go so long after they became a segment, such as 36h or 7d; 0: never.",
    )
    @click.option(
        "--size",
        "size_bytes",
        type=size,
        help="The oldest go while a topic or partition has more in segments, such as 10GiB; "
        "0: however much.",
    )
    @click.option(
        "--wait/--force",
        "waits",
        default=None,
        help="Whether messages stay until every subscription is done with them (--wait), or go all "
        "the same (--force).",
    )
    @wraps(command)
    def with_rule(
        *arguments: object,
        time_ms: int | None,
        size_bytes: int | None,
        waits: bool | None,
        **rest: object,
    ) -> None:
        from pydanube.model.policies import OwnRetention

        rule = OwnRetention(time_ms=time_ms, bytes=size_bytes, waits_for_subscriptions=waits)
        command(*arguments, rule=rule, **rest)

    return with_rule


@click.command("retention")
@admin_options
@topic_options
def topic_retention(session: AdminSession, topic: str) -> None:
    """Show how long the history of TOPIC stays; 0 is for ever."""
    session.show(lambda operations: operations.topics.retention(topic))


@click.command("set-retention")
@click.option("--inherit", is_flag=True, help="TOPIC has what its namespace has.")
@retention_options
@admin_options
@topic_options
def set_topic_retention(
    session: AdminSession, topic: str, rule: "OwnRetention", inherit: bool
) -> None:
    """Say how long the history of TOPIC, a reliable one, stays.

    What is not given is as the namespace says. It replaces what was set before.
    """
    given = rule.time_ms, rule.bytes, rule.waits_for_subscriptions
    if inherit is any(each is not None for each in given):
        raise InvalidRequest("give --time, --size, --wait or --force, or else --inherit")
    session.show(lambda operations: operations.topics.set_retention(topic, rule))


@click.command("retention")
@click.argument("namespace")
@admin_options
def namespace_retention(session: AdminSession, namespace: str) -> None:
    """Show how long the history of NAMESPACE's topics stays; 0 is for ever."""
    session.show(lambda operations: operations.namespaces.retention(namespace))


@click.command("set-retention")
@click.argument("namespace")
@retention_options
@admin_options
def set_namespace_retention(session: AdminSession, namespace: str, rule: "OwnRetention") -> None:
    """Say how long the history of NAMESPACE's topics stays, unless they have a rule of their own.

    What is not given is unlimited, and waits. It replaces what was set before.
    """
    session.show(lambda operations: operations.namespaces.set_retention(namespace, rule))
