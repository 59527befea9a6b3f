"""The schema registry on the wire: subjects, versions, compatibility, deletion."""

import asyncio
import json

from pydanube.wire.calls import StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from pydanube.wire.danube.generated import SchemaRegistry_pb2 as schema
from tests.support.raw_client import RawClient
from tests.support.running_broker import RunningBroker
from tests.support.schema_calls import (
    ORDER,
    ORDER_RENUMBERED,
    ORDER_WITH_NOTE,
    configure,
    deletion,
    json_schema,
    latest,
    reference,
    register,
    registration,
    set_mode,
    versions,
)

TOPIC = "/default/orders"


async def test_a_version_of_the_same_subject_has_the_same_id(client: RawClient) -> None:
    first = await register(client, "orders")
    second = await register(client, "orders", ORDER_WITH_NOTE)
    other = await register(client, "prices")
    assert (first.schema_id, first.version, first.is_new_version) == (1, 1, True)
    assert (second.schema_id, second.version, second.is_new_version) == (1, 2, True)
    assert (other.schema_id, other.version) == (2, 1)
    assert first.fingerprint.startswith("sha256:")
    assert len({first.fingerprint, second.fingerprint}) == 2


async def test_registering_what_is_there_finds_it_whichever_version_it_is(
    broker: RunningBroker, client: RawClient
) -> None:
    first = await register(client, "orders")
    await register(client, "orders", ORDER_WITH_NOTE)
    before = broker.metadata()
    spaced = json.dumps(json.loads(ORDER), indent=4, sort_keys=True).encode()
    again = await register(client, "orders", spaced, "JSON")
    assert (again.schema_id, again.version, again.is_new_version) == (1, 1, False)
    assert again.fingerprint == first.fingerprint
    assert broker.metadata() == before


async def test_the_registered_text_comes_back_as_it_was(client: RawClient) -> None:
    text = b'  {"type":"object" , "properties": {}}\n'
    registered = await register(
        client, "orders", text, description="one", created_by="anne", tags=["a", "b"]
    )
    for found in (
        await latest(client, "orders"),
        await client.call(services.GET_SCHEMA, schema.GetSchemaRequest(schema_id=1)),
        await client.call(services.GET_SCHEMA, schema.GetSchemaRequest(schema_id=1, version=1)),
    ):
        assert found.schema_definition == text
        assert (found.schema_id, found.version, found.subject) == (1, 1, "orders")
        assert (found.schema_type, found.description) == ("json_schema", "one")
        assert (found.created_by, list(found.tags)) == ("anne", ["a", "b"])
        assert found.fingerprint == registered.fingerprint
        assert found.compatibility_mode == "backward"
        assert 1_600_000_000 < found.created_at < 10_000_000_000, "in seconds"


async def test_both_ports_serve_the_registry(client: RawClient) -> None:
    await register(client, "orders")
    request = schema.GetLatestSchemaRequest(subject="orders").SerializeToString()
    for on_admin in (False, True):
        reply = await client.raw(services.GET_LATEST_SCHEMA.path, request, on_admin=on_admin)
        assert schema.GetSchemaResponse.FromString(reply).schema_id == 1


async def test_an_incompatible_version_is_refused_with_the_place_and_the_rule(
    broker: RunningBroker, client: RawClient
) -> None:
    await register(client, "orders")
    request = registration("orders", ORDER_RENUMBERED)
    refused = await broker.refusal(client, services.REGISTER_SCHEMA, request)
    assert refused.code is StatusCode.FAILED_PRECONDITION
    assert "orders (backward): version 1: backward: id:" in refused.text
    await set_mode(client, "orders", "None")
    assert (await register(client, "orders", ORDER_RENUMBERED)).version == 2


async def test_checking_tells_what_registering_would_and_changes_nothing(
    broker: RunningBroker, client: RawClient
) -> None:
    await register(client, "orders")
    before = broker.metadata()

    async def check(definition: bytes, mode: str | None = None) -> list[str]:
        request = schema.CheckCompatibilityRequest(
            subject="orders",
            new_schema_definition=definition,
            schema_type="json_schema",
            compatibility_mode=mode,
        )
        reply = await client.call(services.CHECK_COMPATIBILITY, request)
        assert reply.is_compatible == (not reply.errors)
        return list(reply.errors)

    assert await check(ORDER) == []
    assert await check(ORDER_WITH_NOTE) == []
    (error,) = await check(ORDER_RENUMBERED)
    assert error.startswith("version 1: backward: id:")
    assert await check(ORDER_RENUMBERED, "none") == []
    assert broker.metadata() == before


async def test_transitive_modes_look_at_every_version(client: RawClient) -> None:
    for number, kind in enumerate(("integer", "number", "string"), start=1):
        await register(client, f"s{number}", json_schema("id", id=kind))
    await register(client, "orders", json_schema("id", id="integer"))
    await set_mode(client, "orders", "none")
    await register(client, "orders", json_schema("id", id="string"))
    definition = json_schema("id", id="string", note="string")
    for mode, compatible in (("backward", True), ("backward_transitive", False)):
        reply = await client.call(
            services.CHECK_COMPATIBILITY,
            schema.CheckCompatibilityRequest(
                subject="orders",
                new_schema_definition=definition,
                schema_type="json_schema",
                compatibility_mode=mode,
            ),
        )
        assert reply.is_compatible == compatible, mode
        assert all(error.startswith("version 1:") for error in reply.errors)


BAD_REQUESTS = [
    (services.REGISTER_SCHEMA, registration("", ORDER), "INVALID_ARGUMENT", "subject"),
    (services.REGISTER_SCHEMA, registration("x" * 300), "INVALID_ARGUMENT", "256"),
    (services.REGISTER_SCHEMA, registration("s", b"{"), "INVALID_ARGUMENT", ""),
    (services.REGISTER_SCHEMA, registration("s", b'{"type": 7}'), "INVALID_ARGUMENT", ""),
    (services.REGISTER_SCHEMA, registration("s", ORDER, "thrift"), "INVALID_ARGUMENT", "thrift"),
    (services.REGISTER_SCHEMA, registration("s", tags=["t"] * 99), "INVALID_ARGUMENT", "tags"),
    (
        services.REGISTER_SCHEMA,
        registration("s", description="d" * 5000),
        "INVALID_ARGUMENT",
        "description",
    ),
    (services.GET_SCHEMA, schema.GetSchemaRequest(schema_id=9), "NOT_FOUND", "not found"),
    (services.GET_SCHEMA, schema.GetSchemaRequest(schema_id=1, version=9), "NOT_FOUND", "9"),
    (services.GET_SCHEMA, schema.GetSchemaRequest(schema_id=1, version=0), "NOT_FOUND", "0"),
    (services.GET_LATEST_SCHEMA, schema.GetLatestSchemaRequest(subject="no"), "NOT_FOUND", "no"),
    (services.LIST_VERSIONS, schema.ListVersionsRequest(subject="no"), "NOT_FOUND", "not found"),
    (
        services.CHECK_COMPATIBILITY,
        schema.CheckCompatibilityRequest(
            subject="no", schema_type="json", new_schema_definition=ORDER
        ),
        "NOT_FOUND",
        "not found",
    ),
    (
        services.SET_COMPATIBILITY_MODE,
        schema.SetCompatibilityModeRequest(subject="orders", compatibility_mode="sideways"),
        "INVALID_ARGUMENT",
        "sideways",
    ),
    (services.DELETE_SCHEMA_VERSION, deletion("orders", 7), "NOT_FOUND", "no version 7"),
    (services.DELETE_SCHEMA_VERSION, deletion("no", 1), "NOT_FOUND", "not found"),
    (services.DELETE_SUBJECT, own.DeleteSubjectRequest(subject="no"), "NOT_FOUND", "not found"),
]


async def test_bad_requests_change_nothing_and_say_why(
    broker: RunningBroker, client: RawClient
) -> None:
    await register(client, "orders")
    for method, request, code, words in BAD_REQUESTS:
        refused = await broker.refusal(client, method, request)
        assert (refused.code.name, method.name) == (code, method.name)
        assert words in refused.text
        assert refused.text


async def test_subjects_are_listed_whatever_they_are_called(client: RawClient) -> None:
    names = ["orders", TOPIC, "_index", "_global", "a b%2F", "числа"]
    for name in names:
        await register(client, name, tags=["t"])
    await register(client, "orders", ORDER_WITH_NOTE, tags=["u"])
    reply = await client.call(services.LIST_SUBJECTS, schema.ListSubjectsRequest())
    assert [each.subject for each in reply.subjects] == names
    assert [each.schema_id for each in reply.subjects] == [1, 2, 3, 4, 5, 6]
    first = reply.subjects[0]
    assert (first.latest_version, first.schema_type) == (2, "json_schema")
    assert (first.compatibility_mode, list(first.tags)) == ("backward", ["u"])
    assert await versions(client, "_index") == [1]


# Races and restarts.


async def test_registrations_that_race_get_one_id_and_different_versions(
    broker: RunningBroker,
) -> None:
    clients = [broker.client() for _ in range(3)]
    await set_mode_of_new(clients[0])
    definitions = [json_schema(f"field{number}") for number in range(12)]
    answers = await asyncio.gather(
        *(register(clients[n % 3], "orders", each) for n, each in enumerate(definitions))
    )
    assert {answer.schema_id for answer in answers} == {1}
    assert sorted(answer.version for answer in answers) == list(range(2, 14))
    assert await versions(clients[0], "orders") == list(range(1, 14))


async def set_mode_of_new(client: RawClient) -> None:
    await register(client, "orders", ORDER)
    await set_mode(client, "orders", "none")


async def test_a_new_subject_that_two_register_at_once_is_one_subject(
    broker: RunningBroker,
) -> None:
    clients = [broker.client() for _ in range(4)]
    same = await asyncio.gather(*(register(each, "orders") for each in clients))
    assert len({(answer.schema_id, answer.version) for answer in same}) == 1
    assert sum(answer.is_new_version for answer in same) == 1
    assert await versions(clients[0], "orders") == [1]


async def test_a_restart_keeps_ids_versions_and_modes(broker: RunningBroker) -> None:
    client = broker.client()
    await register(client, "orders")
    await register(client, "prices")
    await set_mode(client, "prices", "full")
    await register(client, "orders", ORDER_WITH_NOTE)
    await broker.restart()
    client = broker.client()
    assert (await latest(client, "orders")).version == 2
    assert (await latest(client, "prices")).compatibility_mode == "full"
    assert (await register(client, "orders")).is_new_version is False
    assert (await register(client, "third")).schema_id == 3
    refused = await broker.refusal(
        client, services.REGISTER_SCHEMA, registration("orders", ORDER_RENUMBERED)
    )
    assert refused.code is StatusCode.FAILED_PRECONDITION


# Deletion.


async def test_a_deleted_version_is_gone_for_good_and_its_number_too(client: RawClient) -> None:
    await register(client, "orders")
    await register(client, "orders", ORDER_WITH_NOTE)
    assert (await client.call(services.DELETE_SCHEMA_VERSION, deletion("orders", 2))).success
    assert await versions(client, "orders") == [1]
    assert (await latest(client, "orders")).version == 1
    request = schema.GetSchemaRequest(schema_id=1, version=2)
    assert await client.status(services.GET_SCHEMA, request) is StatusCode.NOT_FOUND
    again = await register(client, "orders", ORDER_WITH_NOTE)
    assert (again.version, again.is_new_version) == (3, True)


async def test_a_deleted_subject_leaves_its_id_unused(client: RawClient) -> None:
    await register(client, "orders")
    await register(client, "orders", ORDER_WITH_NOTE)
    reply = await client.call(services.DELETE_SUBJECT, own.DeleteSubjectRequest(subject="orders"))
    assert list(reply.versions) == [1, 2]
    subjects = await client.call(services.LIST_SUBJECTS, schema.ListSubjectsRequest())
    assert list(subjects.subjects) == []
    again = await register(client, "orders")
    assert (again.schema_id, again.version) == (2, 1)


async def test_what_a_topic_needs_is_not_deleted_unless_forced(
    broker: RunningBroker, client: RawClient
) -> None:
    for definition in (ORDER, ORDER_WITH_NOTE, json_schema("id", id="integer", other="string")):
        await register(client, "orders", definition)
    await client.create_producer(TOPIC, schema_ref=reference("orders", pinned_version=1))
    for version, words in ((1, "is named by producers"), (3, "new producers get")):
        refused = await broker.refusal(
            client, services.DELETE_SCHEMA_VERSION, deletion("orders", version)
        )
        assert refused.code is StatusCode.FAILED_PRECONDITION
        assert words in refused.text
        assert TOPIC in refused.text
    refused = await broker.refusal(
        client, services.DELETE_SUBJECT, own.DeleteSubjectRequest(subject="orders")
    )
    assert TOPIC in refused.text
    await client.call(services.DELETE_SCHEMA_VERSION, deletion("orders", 2))
    await client.call(services.DELETE_SCHEMA_VERSION, deletion("orders", 1, force=True))
    await broker.restart()
    client = broker.client()
    refused = await broker.refusal(client, services.DELETE_SCHEMA_VERSION, deletion("orders", 3))
    await client.delete_topic(TOPIC)
    await client.call(services.DELETE_SCHEMA_VERSION, deletion("orders", 3))
    await client.call(services.DELETE_SUBJECT, own.DeleteSubjectRequest(subject="orders"))


async def test_a_topic_bound_elsewhere_lets_its_earlier_subject_go(
    broker: RunningBroker, client: RawClient
) -> None:
    await register(client, "orders")
    await register(client, "prices")
    await client.create_topic(TOPIC, schema_subject="orders")
    request = own.DeleteSubjectRequest(subject="orders")
    await broker.refusal(client, services.DELETE_SUBJECT, request)
    await configure(client, TOPIC, "prices")
    await client.call(services.DELETE_SUBJECT, request)
