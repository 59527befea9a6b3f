"""Topics with schemas: who binds them, what they refuse, and what consumers are told."""

import asyncio
from typing import Any

import pytest

from pydanube.topics import inspection
from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.generated import SchemaRegistry_pb2 as schema
from tests.integration.protocol.conftest import StartBroker
from tests.support.raw_client import RawClient, message, producer_request
from tests.support.running_broker import RunningBroker
from tests.support.schema_calls import configure, reference, register

TOPIC = "/default/orders"
BAD = b"\xff\xfe"
"""Is no text."""


@pytest.fixture
async def text(client: RawClient) -> int:
    """Register a subject whose payloads are texts; return its id."""
    await register(client, "numbers", b"x", "number")
    return (await register(client, "texts", b"x", "string")).schema_id


async def config(client: RawClient, topic: str = TOPIC) -> tuple[str, str, bool, int]:
    request = schema.GetTopicSchemaConfigRequest(topic_name=topic)
    found = await client.call(services.GET_TOPIC_SCHEMA_CONFIG, request)
    return (
        found.schema_subject,
        found.validation_policy,
        found.enable_payload_validation,
        found.schema_id,
    )


def bound(subject: str, **version: Any) -> Any:
    return producer_request(TOPIC, "q", schema_ref=reference(subject, **version))


# Binding.


async def test_the_first_producer_with_a_schema_binds_its_topic(
    broker: RunningBroker, client: RawClient, text: int
) -> None:
    await client.create_producer(TOPIC, "plain")
    assert await config(client) == ("", "warn", False, 0)
    await client.create_producer(TOPIC, "first", schema_ref=reference("texts"))
    assert await config(client) == ("texts", "warn", False, text)
    await client.create_producer(TOPIC, "plain too")
    refused = await broker.refusal(client, services.CREATE_PRODUCER, bound("numbers"))
    assert refused.code is StatusCode.FAILED_PRECONDITION
    assert "texts" in refused.text
    assert "cannot use" in refused.text
    await broker.restart()
    client = broker.client()
    assert await config(client) == ("texts", "warn", False, text)
    refused = await broker.refusal(client, services.CREATE_PRODUCER, bound("numbers"))
    assert "texts" in refused.text


async def test_a_topic_created_for_a_producer_is_bound_from_the_start(
    client: RawClient, text: int
) -> None:
    await client.create_producer(TOPIC, schema_ref=reference("texts", use_latest=True))
    assert await config(client) == ("texts", "warn", False, text)


MISSING = [
    ({"pinned_version": 2}, "version 2 of schema subject texts not found; the latest is 1"),
    ({"min_version": 2}, "has not reached version 2"),
    ({"pinned_version": 0}, "count from 1"),
]


async def test_a_reference_to_what_is_not_there_creates_no_topic(
    broker: RunningBroker, client: RawClient, text: int
) -> None:
    for version, words in MISSING:
        refused = await broker.refusal(client, services.CREATE_PRODUCER, bound("texts", **version))
        assert words in refused.text
        assert broker.topics.find(TOPIC) is None


async def test_references_to_what_is_there_are_let_in(client: RawClient, text: int) -> None:
    for name, version in enumerate(({"pinned_version": 1}, {"min_version": 1}, {})):
        await client.create_producer(TOPIC, f"p{name}", schema_ref=reference("texts", **version))


async def test_two_first_producers_with_two_subjects_bind_a_topic_once(
    broker: RunningBroker, client: RawClient, text: int
) -> None:
    async def create(subject: str) -> str:
        try:
            await client.create_producer(TOPIC, subject, schema_ref=reference(subject))
        except CallRefused as refused:
            return refused.code.name
        return "OK"

    outcomes = await asyncio.gather(create("texts"), create("numbers"))
    assert sorted(outcomes) == ["FAILED_PRECONDITION", "OK"]


async def test_a_producer_that_is_not_let_in_binds_nothing(start_broker: StartBroker) -> None:
    broker = await start_broker(max_producers_per_topic=1)
    client = broker.client()
    await register(client, "texts", b"x", "string")
    await client.create_producer(TOPIC, "only")
    refused = await broker.refusal(client, services.CREATE_PRODUCER, bound("texts"))
    assert refused.code is StatusCode.RESOURCE_EXHAUSTED
    assert await config(client) == ("", "warn", False, 0)


async def test_describing_a_topic_tells_its_schema(client: RawClient, text: int) -> None:
    await client.create_topic(TOPIC, schema_subject="texts")
    found = await client.call(services.DESCRIBE_TOPIC, admin.DescribeTopicRequest(name=TOPIC))
    assert (found.schema_subject, found.schema_id, found.schema_version) == ("texts", text, 1)
    assert (found.schema_type, found.compatibility_mode) == ("string", "BACKWARD")


async def test_a_subject_given_before_it_is_registered_counts_once_it_is(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_topic(TOPIC, schema_subject="later")
    assert await config(client) == ("later", "warn", False, 0)
    assert (await register(client, "later", b"x", "string")).schema_id == 1
    assert await config(client) == ("later", "warn", False, 1)
    producer = await client.create_producer(TOPIC, schema_ref=reference("later"))
    assert await client.send(TOPIC, producer, b"x", schema_id=1, schema_version=1) == 0


# Operators.


async def test_operators_bind_topics_and_all_their_partitions(client: RawClient, text: int) -> None:
    await client.create_partitioned("/default/parted", 3)
    await configure(client, "/default/parted", "texts", "Enforce")
    for index in range(3):
        name = f"/default/parted-part-{index}"
        assert await config(client, name) == ("texts", "enforce", True, text)
    assert await config(client, "/default/parted") == ("texts", "enforce", True, text)
    request = schema.UpdateTopicValidationPolicyRequest(
        topic_name="/default/parted-part-1", validation_policy="WARN"
    )
    await client.call(services.UPDATE_TOPIC_VALIDATION_POLICY, request)
    assert await config(client, "/default/parted-part-1") == ("texts", "warn", False, text)


BAD_REQUESTS = [
    (
        services.CONFIGURE_TOPIC_SCHEMA,
        schema.ConfigureTopicSchemaRequest(
            topic_name="/default/none", schema_subject="texts", validation_policy="warn"
        ),
        "NOT_FOUND",
        "/default/none",
    ),
    (
        services.CONFIGURE_TOPIC_SCHEMA,
        schema.ConfigureTopicSchemaRequest(
            topic_name=TOPIC, schema_subject="nothing", validation_policy="warn"
        ),
        "NOT_FOUND",
        "nothing",
    ),
    (
        services.CONFIGURE_TOPIC_SCHEMA,
        schema.ConfigureTopicSchemaRequest(
            topic_name=TOPIC, schema_subject="texts", validation_policy="maybe"
        ),
        "INVALID_ARGUMENT",
        "maybe",
    ),
    (
        services.UPDATE_TOPIC_VALIDATION_POLICY,
        schema.UpdateTopicValidationPolicyRequest(topic_name=TOPIC, validation_policy="enforce"),
        "FAILED_PRECONDITION",
        "bound to no schema subject",
    ),
    (
        services.GET_TOPIC_SCHEMA_CONFIG,
        schema.GetTopicSchemaConfigRequest(topic_name="/default/none"),
        "NOT_FOUND",
        "/default/none",
    ),
]


async def test_bad_requests_of_operators_change_nothing(
    broker: RunningBroker, client: RawClient, text: int
) -> None:
    await client.create_topic(TOPIC)
    for method, request, code, words in BAD_REQUESTS:
        refused = await broker.refusal(client, method, request)
        assert refused.code.name == code
        assert words in refused.text


# Validation.


def counted(broker: RunningBroker) -> dict[str, int]:
    metrics = broker.server._metrics.topic(TOPIC)
    return {reason: count for (reason,), count in metrics.validation_failures.items()}


async def outcome(client: RawClient, producer: int, payload: bytes, **fields: Any) -> str:
    request = message(TOPIC, producer, payload, **fields)
    try:
        await client.call(services.SEND_MESSAGE, request)
    except CallRefused as refused:
        return f"{refused.code.name}: {refused.text}"
    return "stored"


CASES = [
    ({"schema_id": 2, "schema_version": 1}, b"text", None, None),
    ({"schema_id": 2}, b"text", None, None),
    ({}, b"text", "missing_schema_id", "takes those of subject texts (schema_id 2)"),
    ({"schema_id": 1}, b"text", "subject_mismatch", "schema_id 1 belongs to subject numbers"),
    ({"schema_id": 9}, b"text", "unknown_schema", "schema_id 9 does not exist"),
    ({"schema_id": 2, "schema_version": 7}, b"text", "unknown_schema", "no version 7"),
    ({"schema_id": 2, "schema_version": 1}, BAD, "payload_invalid", "version 1 says"),
]


@pytest.mark.parametrize("reliable", [True, False])
@pytest.mark.parametrize("policy", ["none", "warn", "enforce"])
async def test_a_policy_accepts_counts_or_refuses(
    broker: RunningBroker, client: RawClient, text: int, policy: str, reliable: bool
) -> None:
    assert text == 2
    await client.create_topic(TOPIC, reliable=reliable)
    await configure(client, TOPIC, "texts", policy)
    producer = await client.create_producer(TOPIC, reliable=reliable)
    stream = await client.consume(TOPIC)
    accepted: list[tuple[bytes, Any]] = []
    for fields, payload, reason, words in CASES:
        before = counted(broker)
        said = await outcome(client, producer, payload, **fields)
        if policy == "enforce" and reason is not None:
            assert said.startswith("INVALID_ARGUMENT: ")
            assert words in said, fields
            assert reason in said
            assert TOPIC in said
        else:
            assert said == "stored"
            accepted.append((payload, fields))
        expected = dict(before)
        if policy != "none" and reason is not None:
            expected[reason] = expected.get(reason, 0) + 1
        assert counted(broker) == expected
    received = await stream.take(len(accepted))
    assert [each.payload for each in received] == [payload for payload, _ in accepted]
    for each, (_, fields) in zip(received, accepted, strict=True):
        assert each.HasField("schema_id") == ("schema_id" in fields)
        assert each.schema_id == fields.get("schema_id", 0)
        assert each.HasField("schema_version") == ("schema_version" in fields)
        assert each.schema_version == fields.get("schema_version", 0)
    assert await stream.rest() == []


async def test_without_payload_validation_only_the_schema_is_looked_at(
    client: RawClient, text: int
) -> None:
    await client.create_topic(TOPIC)
    await configure(client, TOPIC, "texts", payloads=False)
    producer = await client.create_producer(TOPIC)
    assert await outcome(client, producer, BAD, schema_id=text) == "stored"
    assert "missing_schema_id" in await outcome(client, producer, b"text")


async def test_of_the_messages_of_one_tick_only_the_bad_are_refused(
    broker: RunningBroker, client: RawClient, text: int
) -> None:
    await client.create_topic(TOPIC)
    await configure(client, TOPIC, "texts")
    producer = await client.create_producer(TOPIC)
    payloads = [BAD if number % 3 == 0 else b"m%d" % number for number in range(60)]
    outcomes = await asyncio.gather(
        *(
            outcome(client, producer, each, schema_id=text, request_id=number)
            for number, each in enumerate(payloads)
        )
    )
    assert [said == "stored" for said in outcomes] == [each != BAD for each in payloads]
    stream = await client.consume(TOPIC, start_position="earliest")
    received = []
    for _ in range(40):
        received.append(await stream.next())
        await client.ack(received[-1])
    good = [each for each in payloads if each != BAD]
    assert sorted(each.payload for each in received) == sorted(good)
    assert await stream.rest() == []


async def test_much_is_looked_at_in_a_thread_with_the_same_outcome(
    broker: RunningBroker, client: RawClient, text: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "AT_ONCE_BYTES_MAX", 0)
    await client.create_topic(TOPIC)
    await configure(client, TOPIC, "texts")
    producer = await client.create_producer(TOPIC)
    payloads = [BAD if number % 3 == 0 else b"m%d" % number for number in range(30)]
    outcomes = await asyncio.gather(
        *(
            outcome(client, producer, each, schema_id=text, request_id=number)
            for number, each in enumerate(payloads)
        )
    )
    assert [said == "stored" for said in outcomes] == [each != BAD for each in payloads]
    assert broker.topics.get(TOPIC)._context.inspection.waiting.bytes == 0


async def test_a_stricter_rule_holds_for_all_that_is_stored_after_it(
    broker: RunningBroker, client: RawClient, text: int
) -> None:
    await client.create_topic(TOPIC)
    await configure(client, TOPIC, "texts", "warn")
    producer = await client.create_producer(TOPIC)
    assert await outcome(client, producer, BAD, schema_id=text) == "stored"
    await configure(client, TOPIC, "texts", "enforce")
    assert "payload_invalid" in await outcome(client, producer, BAD, schema_id=text)
    await broker.restart()
    client = broker.client()
    assert "payload_invalid" in await outcome(client, producer, BAD, schema_id=text)
    await configure(client, TOPIC, "texts", "none")
    assert await outcome(client, producer, BAD) == "stored"


async def test_dead_letters_of_a_strict_topic_go_where_they_may(
    broker: RunningBroker, client: RawClient, text: int
) -> None:
    """A dead letter is a message like any other: its topic's schema holds for it too."""
    await client.create_topic(TOPIC)
    await client.create_topic("/default/dead")
    await configure(client, TOPIC, "texts", "warn")
    await configure(client, "/default/dead", "texts", "enforce")
    producer = await client.create_producer(TOPIC)
    await client.send(TOPIC, producer, b"text", schema_id=text, schema_version=1)
    await client.set_failure_policy(
        TOPIC,
        max_redelivery_count=1,
        base_redelivery_delay_ms=0,
        dead_letter_topic="/default/dead",
        poison_policy=admin.SubscriptionPoisonPolicy.DeadLetter,
    )
    stream = await client.consume(TOPIC, start_position="earliest")
    for _ in range(2):
        await client.nack(await stream.next(), delay_ms=0)
    dead = await client.consume("/default/dead", start_position="earliest")
    letter = await dead.next()
    assert (letter.payload, letter.schema_id, letter.schema_version) == (b"text", text, 1)
