"""`danube schemas`, `danube-admin schemas` and `danube-cli schema` against a real broker."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pydanube.cli.main import danube, danube_admin, danube_cli
from pydanube.testing.broker import Broker
from tests.support.schema_calls import ORDER, ORDER_RENUMBERED, ORDER_WITH_NOTE

TOPIC = "/default/orders"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    definitions = {"order": ORDER, "note": ORDER_WITH_NOTE, "renumbered": ORDER_RENUMBERED}
    for name, definition in definitions.items():
        (tmp_path / name).write_bytes(definition)
    return {name: str(tmp_path / name) for name in definitions}


def run(program: Any, *arguments: str) -> Result:
    return CliRunner().invoke(program, list(arguments), env={"USER": "anne"})


def answer(program: Any, *arguments: str) -> Any:
    result = run(program, *arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_tour_through_the_verbs_of_operators(broker: Broker, files: dict[str, str]) -> None:
    def schemas(*arguments: str, program: Any = danube) -> Any:
        verb, *rest = arguments
        return answer(program, "schemas", verb, "--endpoint", broker.admin_url, *rest)

    def topics(*arguments: str) -> Any:
        verb, *rest = arguments
        return answer(danube_admin, "topics", verb, "--endpoint", broker.admin_url, *rest)

    of_type = ("--schema-type", "json_schema")
    first = schemas("register", "orders", *of_type, "--file", files["order"], "--tags", "a")
    assert (first["schema_id"], first["version"], first["is_new_version"]) == (1, 1, True)
    checked = schemas("check", "orders", *of_type, "--file", files["renumbered"])
    assert checked["is_compatible"] is False
    assert checked["errors"][0].startswith("version 1: backward: id:")
    relaxed = ("--mode", "none")
    assert schemas("check", "orders", *of_type, "--file", files["renumbered"], *relaxed) == {
        "is_compatible": True,
        "errors": [],
    }
    refused = run(
        danube,
        *("schemas", "register", "orders", *of_type, "--file", files["renumbered"]),
        *("--endpoint", broker.admin_url),
    )
    assert refused.exit_code == 5
    assert "set another compatibility mode" in refused.stderr
    second = schemas("register", "orders", *of_type, "--schema", ORDER_WITH_NOTE.decode())
    assert (second["schema_id"], second["version"]) == (1, 2)
    assert [each["version"] for each in schemas("versions", "orders")] == [1, 2]
    assert schemas("versions", "orders")[0]["created_by"] == "anne"
    found = schemas("get", "--id", "1", "--version", "1")
    assert (found["subject"], found["tags"]) == ("orders", ["a"])
    assert found["definition"] == ORDER.decode()
    assert schemas("get", "--subject", "orders", program=danube_admin)["version"] == 2
    (listed,) = schemas("list-subjects")
    assert (listed["subject"], listed["latest_version"]) == ("orders", 2)
    difference = schemas("diff", "orders")
    assert (difference["from_version"], difference["to_version"]) == (1, 2)
    assert [each["place"] for each in difference["changes"]] == ["note"]
    assert difference["new_cannot_read_old"] == []
    schemas("set-compatibility", "orders", "--mode", "full")
    assert schemas("get-compatibility", "orders")["compatibility_mode"] == "full"

    topics("create", TOPIC, "--dispatch-strategy", "reliable", "--schema-subject", "orders")
    assert topics("get-schema-config", TOPIC)["validation_policy"] == "warn"
    configured = topics(
        *("configure-schema", TOPIC, "--subject", "orders"),
        *("--validation-policy", "enforce", "--enable-payload-validation"),
    )
    assert configured == {
        "topic": TOPIC,
        "schema_subject": "orders",
        "schema_id": 1,
        "validation_policy": "enforce",
        "enable_payload_validation": True,
    }
    relaxed_config = topics("set-validation-policy", TOPIC, "--policy", "warn")
    assert relaxed_config["enable_payload_validation"] is False

    in_use = run(
        danube, *("schemas", "delete", "orders", "--confirm", "--endpoint"), broker.admin_url
    )
    assert in_use.exit_code == 5
    assert TOPIC in in_use.stderr
    unsure = run(danube, "schemas", "delete", "orders", "--endpoint", broker.admin_url)
    assert "--confirm" in unsure.stderr
    assert schemas("delete", "orders", "--version", "1", "--confirm")["versions"] == [1]
    topics("delete", TOPIC)
    assert schemas("delete", "orders", "--confirm")["versions"] == [2]


def test_versions_that_topics_use_and_the_last_ones_of_subjects(
    broker: Broker, files: dict[str, str]
) -> None:
    def admin(room: str, verb: str, *arguments: str) -> Any:
        return answer(danube_admin, room, verb, "--endpoint", broker.admin_url, *arguments)

    for subject in ("orders", "prices"):
        of_type = ("--schema-type", "json_schema", "--file", files["order"])
        admin("schemas", "register", subject, *of_type)
    admin("topics", "create", TOPIC, "--schema-subject", "orders")
    first = ("--version", "1", "--confirm", "--endpoint", broker.admin_url)
    in_use = run(danube_admin, "schemas", "delete", "orders", *first)
    assert in_use.exit_code == 5
    assert f"{TOPIC}. Keep it, or register a newer version, bind each topic" in in_use.stderr
    assert "force it" not in in_use.stderr
    assert run(danube_admin, "schemas", "delete", "prices", *first).exit_code == 0
    assert [each["subject"] for each in admin("schemas", "list-subjects")] == ["orders"]


def test_the_schema_commands_of_danube_cli(broker: Broker, files: dict[str, str]) -> None:
    def schema(*arguments: str) -> Any:
        return answer(danube_cli, "schema", "-s", broker.url, *arguments)

    assert schema("register", "orders", "-t", "json_schema", "-f", files["order"])["version"] == 1
    assert schema("register", "orders", "-t", "json_schema", "-f", files["note"])["version"] == 2
    assert schema("get", "orders")["version"] == 2
    assert schema("get", "orders", "-v", "1")["version"] == 1
    assert [each["version"] for each in schema("versions", "orders")] == [1, 2]
    checked = schema("check", "orders", "-f", files["renumbered"], "-t", "json_schema")
    assert checked["is_compatible"] is False
    assert [each["subject"] for each in schema("list")] == ["orders"]
    assert schema("delete", "orders", "-v", "1", "--confirm")["change"] == "version deleted"
    table = run(danube_cli, "schema", "-s", broker.url, "list", "-o", "table")
    assert table.exit_code == 0
    assert "orders" in table.stdout
    nothing = run(danube_cli, "schema", "-s", broker.url, "get", "prices")
    assert nothing.exit_code == 3
    assert "not found" in nothing.stderr


def test_messages_are_published_with_a_schema_and_show_it(
    broker: Broker, files: dict[str, str]
) -> None:
    def produce(message: str, *arguments: str) -> Result:
        place = ("produce", "-s", broker.url, "-t", TOPIC, "--reliable")
        return run(danube, *place, "-m", message, "--schema-subject", "orders", *arguments)

    first = produce('{"id": 1}', "--schema-file", files["order"])
    assert first.exit_code == 0, first.output
    assert produce('{"id": "x"}').exit_code == 0, "a topic warns unless told otherwise"
    assert produce('{"id": 2}', "--schema-version", "7").exit_code == 3
    consumed = run(
        danube,
        *("consume", "-s", broker.url, "-t", TOPIC, "-m", "all", "--count", "2"),
        *("--start-position", "earliest", "--output", "json"),
    )
    assert consumed.exit_code == 0, consumed.output
    rows = [json.loads(line) for line in consumed.stdout.splitlines()]
    assert [(row["schema_id"], row["schema_version"]) for row in rows] == [(1, 1), (1, 1)]
    assert "warning: message 1 of /default/orders does not match version 1" in consumed.stderr


def test_a_definition_is_given_once(broker: Broker, files: dict[str, str]) -> None:
    for arguments, said in (
        (("--schema", "{}", "--file", files["order"]), "either --file or --schema"),
        ((), "needs --file or --schema"),
    ):
        result = run(danube, "schemas", "register", "s", "--schema-type", "json_schema", *arguments)
        assert result.exit_code == 2
        assert said in result.stderr
