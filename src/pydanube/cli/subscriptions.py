"""`danube subscriptions`, and the verbs of `danube topics` that concern one subscription."""

from collections.abc import Callable

import click

from pydanube.cli.options import AdminSession, admin_options, topic_options
from pydanube.model.policies import WINDOW_MAX, WINDOW_MIN, BackoffStrategy, PoisonPolicy

BACKOFF_STRATEGIES: dict[str, BackoffStrategy] = {"fixed": "Fixed", "exponential": "Exponential"}
POISON_POLICIES: dict[str, PoisonPolicy] = {
    "dead_letter": "DeadLetter",
    "block": "Block",
    "drop": "Drop",
}


def subscription_option(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `-s/--subscription`."""
    option = click.option("-s", "--subscription", required=True, help="Name of the subscription.")
    return option(command)


@click.command("subscriptions")
@admin_options
@topic_options
def subscriptions_of_topic(session: AdminSession, topic: str) -> None:
    """List the subscriptions of TOPIC, and what stops those that do not go on.

    As JSON it gives their names, as Danube's tool does; `danube subscriptions list` gives all.
    """
    if session.output == "json":
        session.show(lambda operations: operations.subscriptions.names(topic))
    else:
        _show_standings(session, topic)


@click.command("list")
@admin_options
@topic_options
def list_subscriptions(session: AdminSession, topic: str) -> None:
    """List the subscriptions of TOPIC, how they get on, and what stops those that do not."""
    _show_standings(session, topic)


def _show_standings(session: AdminSession, topic: str) -> None:
    from pydanube.cli.standings import subscriptions_as_text

    session.show(
        lambda operations: operations.subscriptions.list_subscriptions(topic), subscriptions_as_text
    )


@click.command()
@subscription_option
@admin_options
@topic_options
def unsubscribe(session: AdminSession, topic: str, subscription: str) -> None:
    """Delete a subscription that has no active consumer."""
    session.show(lambda operations: operations.subscriptions.unsubscribe(topic, subscription))


@click.command("set-failure-policy")
@subscription_option
@click.option(
    "--max-redelivery-count",
    type=click.IntRange(min=0),
    help="How often a message comes again; it has one attempt more.",
)
@click.option(
    "--ack-timeout-ms", type=click.IntRange(min=1), help="Not acked for so long is a failure."
)
@click.option(
    "--base-redelivery-delay-ms",
    type=click.IntRange(min=0),
    help="How long a message waits after its first failure.",
)
@click.option(
    "--max-redelivery-delay-ms", type=click.IntRange(min=0), help="How long it waits at most."
)
@click.option(
    "--backoff-strategy",
    type=click.Choice(list(BACKOFF_STRATEGIES)),
    help="Whether the delay stays the same or doubles with each failure.",
)
@click.option(
    "--dead-letter-topic",
    help="Full name of the topic for poison policy dead_letter; TOPIC with -dlq behind it if none "
    "is given or set.",
)
@click.option(
    "--poison-policy",
    type=click.Choice(list(POISON_POLICIES)),
    help="What becomes of a message whose deliveries are used up.",
)
@admin_options
@topic_options
def set_failure_policy(
    session: AdminSession,
    topic: str,
    subscription: str,
    backoff_strategy: str | None,
    poison_policy: str | None,
    max_redelivery_count: int | None,
    ack_timeout_ms: int | None,
    base_redelivery_delay_ms: int | None,
    max_redelivery_delay_ms: int | None,
    dead_letter_topic: str | None,
) -> None:
    """Say what happens to messages of TOPIC that are nacked or not acked in time.

    What is not given stays as it is. It applies at once, to what is blocked too.
    """
    from pydanube.cli.standings import policy_as_text
    from pydanube.model.failure_policies import FailurePolicyChange

    change = FailurePolicyChange(
        max_redelivery_count=max_redelivery_count,
        ack_timeout_ms=ack_timeout_ms,
        base_redelivery_delay_ms=base_redelivery_delay_ms,
        max_redelivery_delay_ms=max_redelivery_delay_ms,
        backoff_strategy=BACKOFF_STRATEGIES[backoff_strategy] if backoff_strategy else None,
        dead_letter_topic=dead_letter_topic,
        poison_policy=POISON_POLICIES[poison_policy] if poison_policy else None,
    )
    session.show(
        lambda operations: operations.subscriptions.set_failure_policy(topic, subscription, change),
        policy_as_text,
    )


@click.command("get-failure-policy")
@subscription_option
@admin_options
@topic_options
def get_failure_policy(session: AdminSession, topic: str, subscription: str) -> None:
    """Show what happens to messages that fail, whether it was set or is the default."""
    from pydanube.cli.standings import policy_as_text

    session.show(
        lambda operations: operations.subscriptions.failure_policy(topic, subscription),
        policy_as_text,
    )


@click.command("set-dispatch-config")
@subscription_option
@click.option(
    "--max-unacked-messages",
    type=click.IntRange(WINDOW_MIN, WINDOW_MAX),
    required=True,
    help="How many messages may be delivered and not yet acked.",
)
@admin_options
@topic_options
def set_dispatch_config(
    session: AdminSession, topic: str, subscription: str, max_unacked_messages: int
) -> None:
    """Say how many messages of TOPIC a subscription may have in flight."""
    from pydanube.model.policies import DispatchConfig

    config = DispatchConfig(max_unacked_messages=max_unacked_messages)
    session.show(
        lambda operations: operations.subscriptions.set_dispatch_config(topic, subscription, config)
    )


@click.command("get-dispatch-config")
@subscription_option
@admin_options
@topic_options
def get_dispatch_config(session: AdminSession, topic: str, subscription: str) -> None:
    """Show how many messages may be in flight, whether it was set or is the default."""
    session.show(lambda operations: operations.subscriptions.dispatch_config(topic, subscription))


COMMANDS = (
    subscriptions_of_topic,
    unsubscribe,
    set_failure_policy,
    get_failure_policy,
    set_dispatch_config,
    get_dispatch_config,
)


@click.group("subscriptions")
def command() -> None:
    """List, move, configure and delete subscriptions."""


@command.command()
@subscription_option
@click.option(
    "--to",
    "position",
    required=True,
    help="earliest, latest, offset:N, or time:T for the first message published at T or later: "
    "milliseconds since 1970, or 2026-01-31T12:00:00Z.",
)
@admin_options
@topic_options
def seek(session: AdminSession, topic: str, subscription: str, position: str) -> None:
    """Let a subscription of TOPIC, and of all its partitions, go on from elsewhere."""
    session.show(lambda operations: operations.subscriptions.seek(topic, subscription, position))


command.add_command(list_subscriptions)
for verb in COMMANDS[1:]:
    command.add_command(verb)
