"""`danube topics`: verbs on topics, and on their subscriptions."""

import click

from pydanube.cli import retention, subscriptions
from pydanube.cli.options import AdminSession, admin_options, topic_options
from pydanube.errors import InvalidRequest
from pydanube.model.policies import REPLICAS_MAX, DispatchStrategy, Durability

DISPATCH_STRATEGIES: dict[str, DispatchStrategy] = {
    "non_reliable": "NonReliable",
    "reliable": "Reliable",
}
VALIDATION_POLICIES = ("none", "warn", "enforce")


@click.group("topics")
def command() -> None:
    """Create, list, describe and delete topics."""


@command.command("list")
@click.option("--namespace", help="Topics of this namespace.")
@click.option("--broker", help="Topics served by the broker with this id.")
@admin_options
def list_topics(session: AdminSession, namespace: str | None, broker: str | None) -> None:
    """List the topics of a namespace (default: default) or of a broker."""
    if namespace and broker:
        raise InvalidRequest("--namespace and --broker exclude each other")
    if broker:
        session.show(lambda operations: operations.topics.list_of_broker(broker))
    else:
        session.show(lambda operations: operations.topics.list_of_namespace(namespace or "default"))


@command.command()
@click.option("--partitions", type=click.IntRange(min=1), help="Make it of so many partitions.")
@click.option("--schema-subject", help="Subject of the schema registry to bind it to.")
@click.option(
    "--dispatch-strategy",
    type=click.Choice(list(DISPATCH_STRATEGIES)),
    default="non_reliable",
    show_default=True,
    help="reliable: stored, and delivered until acked.",
)
@click.option(
    "--durability",
    type=click.Choice(["fsync", "os", "memory"]),
    help="What an acknowledgement of a reliable topic means. The broker's default is fsync.",
)
@admin_options
@topic_options
def create(
    session: AdminSession,
    topic: str,
    partitions: int | None,
    schema_subject: str | None,
    dispatch_strategy: str,
    durability: Durability | None,
) -> None:
    """Create TOPIC, a full name such as /default/orders."""
    session.show(
        lambda operations: operations.topics.create(
            topic,
            dispatch=DISPATCH_STRATEGIES[dispatch_strategy],
            partitions=partitions,
            durability=durability,
            schema_subject=schema_subject,
        )
    )


@command.command()
@admin_options
@topic_options
def delete(session: AdminSession, topic: str) -> None:
    """Delete TOPIC with all its partitions, messages and subscriptions."""
    session.show(lambda operations: operations.topics.delete(topic))


@command.command()
@admin_options
@topic_options
def describe(session: AdminSession, topic: str) -> None:
    """Show what is known about TOPIC."""
    from pydanube.cli.standings import topic_as_text

    session.show(lambda operations: operations.topics.describe(topic), topic_as_text)


@command.command("set-message-ttl")
@click.option(
    "--ttl-ms",
    type=click.IntRange(min=0),
    help="Milliseconds after its publish time; 0 lets messages live for ever. Without it, TOPIC "
    "has what its namespace has.",
)
@admin_options
@topic_options
def set_message_ttl(session: AdminSession, topic: str, ttl_ms: int | None) -> None:
    """Say how long messages of TOPIC, a reliable one, may be delivered."""
    session.show(lambda operations: operations.topics.set_message_ttl(topic, ttl_ms))


@command.command("set-replicas")
@click.option(
    "--replicas",
    type=click.IntRange(0, REPLICAS_MAX),
    help="Journals, the owner's included; 0 is as the brokers are configured. Without it, TOPIC "
    "has what its namespace has.",
)
@admin_options
@topic_options
def set_replicas(session: AdminSession, topic: str, replicas: int | None) -> None:
    """Say in how many brokers' journals the messages of TOPIC, a reliable one, are."""
    session.show(lambda operations: operations.topics.set_replicas(topic, replicas))


validation_options = click.option(
    "--enable-payload-validation",
    is_flag=True,
    help="Hold every payload against the schema version its message names.",
)


@command.command("configure-schema")
@click.option("--subject", required=True, help="Of the schema registry.")
@click.option(
    "--validation-policy",
    type=click.Choice(VALIDATION_POLICIES, case_sensitive=False),
    default="none",
    show_default=True,
    help="warn: accept and count what is wrong. enforce: refuse it.",
)
@validation_options
@admin_options
@topic_options
def configure_schema(
    session: AdminSession,
    topic: str,
    subject: str,
    validation_policy: str,
    enable_payload_validation: bool,
) -> None:
    """Bind TOPIC, with all its partitions, to a subject of the schema registry."""
    session.show(
        lambda operations: operations.topics.configure_schema(
            topic, subject, validation_policy, validates_payloads=enable_payload_validation
        )
    )


@command.command("set-validation-policy")
@click.option(
    "--policy", type=click.Choice(VALIDATION_POLICIES, case_sensitive=False), required=True
)
@validation_options
@admin_options
@topic_options
def set_validation_policy(
    session: AdminSession, topic: str, policy: str, enable_payload_validation: bool
) -> None:
    """Say how strict TOPIC is, which is bound to a subject."""
    session.show(
        lambda operations: operations.topics.set_validation_policy(
            topic, policy, validates_payloads=enable_payload_validation
        )
    )


@command.command("get-schema-config")
@admin_options
@topic_options
def get_schema_config(session: AdminSession, topic: str) -> None:
    """Show which subject TOPIC is bound to, and how strict it is."""
    session.show(lambda operations: operations.topics.schema_config(topic))


@command.command()
@admin_options
@topic_options
def unload(session: AdminSession, topic: str) -> None:
    """Hand TOPIC over to another broker."""
    session.show(lambda operations: operations.topics.unload(topic))


command.add_command(retention.topic_retention)
command.add_command(retention.set_topic_retention)
for verb in subscriptions.COMMANDS:
    command.add_command(verb)
