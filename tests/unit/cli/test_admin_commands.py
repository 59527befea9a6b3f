import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pydanube.cli.main import danube, danube_admin
from pydanube.cli.options import Outside
from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as pb
from tests.support.fake_admin import BROKER_ID, FakeAdmin


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


def run(admin: FakeAdmin, line: str, **environment: str) -> Result:
    runner = CliRunner(env={"DANUBE_ADMIN_ENDPOINT": None, **environment})
    # What Danube's own tool does not have, ours has.
    program = danube if line.startswith("subscriptions") else danube_admin
    result = runner.invoke(program, line.split(), obj=Outside(admin.open_channel))
    assert admin.closed or not admin.urls, "the connection was left open"
    return result


def run_json(admin: FakeAdmin, line: str) -> Any:
    result = run(admin, f"{line} --output json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_topic_is_created_described_listed_and_deleted(admin: FakeAdmin) -> None:
    created = run_json(admin, "topics create /default/orders --dispatch-strategy reliable")
    assert created == {"topic": "/default/orders", "change": "created", "partitions": None}
    described = run_json(admin, "topics describe /default/orders")
    assert (described["name"], described["delivery"]) == ("/default/orders", "Reliable")
    assert described["schema_id"] is None
    assert run_json(admin, "topics list --namespace default") == [
        {"name": "/default/orders", "broker_id": BROKER_ID, "delivery": "Reliable"}
    ]
    assert run_json(admin, f"topics list --broker {BROKER_ID}")[0]["name"] == "/default/orders"
    assert admin.last("ListBrokerTopics").broker_id == BROKER_ID
    assert run_json(admin, "topics delete /default/orders")["change"] == "deleted"
    assert run_json(admin, "topics list") == []


def test_a_topic_may_be_named_by_namespace(admin: FakeAdmin) -> None:
    run_json(admin, "topics create orders --namespace shop")
    assert list(admin.topics) == ["/shop/orders"]
    assert (
        run_json(admin, "topics describe /shop/orders --namespace shop")["name"] == "/shop/orders"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topics create orders", "--namespace default"),
        ("topics create /shop/orders --namespace default", "not in namespace"),
        ("topics create /shop/or.ders", "/namespace/topic"),
        ("topics create /shop/orders --durability os", "--dispatch-strategy reliable"),
        ("topics create /shop/orders --partitions 0", "range"),
        ("topics list --namespace a --broker b", "exclude"),
        ("namespaces create a/b", "letters, digits"),
        ("topics set-dispatch-config /a/b -s s --max-unacked-messages 10001", "range"),
        ("brokers activate", "--broker-id"),
    ],
)
def test_a_wrong_command_is_refused_before_anything_is_sent(
    admin: FakeAdmin, line: str, said: str
) -> None:
    result = run(admin, line)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert admin.calls == []


def test_a_partitioned_topic_has_its_durability_on_all_partitions(admin: FakeAdmin) -> None:
    run_json(
        admin,
        "topics create /default/orders --partitions 3 --dispatch-strategy reliable "
        "--durability os --schema-subject order",
    )
    request = admin.last("CreatePartitionedTopic")
    assert (request.base_name, request.partitions, request.durability) == (
        "/default/orders",
        3,
        "os",
    )
    assert (request.dispatch_strategy, request.schema_subject) == (1, "order")


def test_durability_is_left_to_the_broker_unless_given(admin: FakeAdmin) -> None:
    run_json(admin, "topics create /default/a --dispatch-strategy reliable")
    assert not admin.last("CreateTopic").HasField("durability")
    run_json(admin, "topics create /default/b --dispatch-strategy reliable --durability memory")
    assert admin.last("CreateTopic").durability == "memory"
    run_json(admin, "topics create /default/c")
    assert admin.last("CreateTopic").dispatch_strategy == 0


def test_subscriptions_are_listed_and_deleted(admin: FakeAdmin) -> None:
    run_json(admin, "topics create /default/orders")
    admin.topics["/default/orders"].subscriptions.extend(["a", "b"])
    assert run_json(admin, "topics subscriptions /default/orders") == ["a", "b"]
    run_json(admin, "topics unsubscribe /default/orders -s a")
    assert run(admin, "topics subscriptions orders --namespace default").stdout == "b\n"


def test_a_failure_policy_is_set_and_read_back(admin: FakeAdmin) -> None:
    line = "topics get-failure-policy /default/orders -s billing"
    assert run_json(admin, line)["failure_policy"]["poison_policy"] == "Block"
    assert run_json(admin, line)["is_default"]
    assert run_json(admin, line)["subscription_type"] is None
    run_json(
        admin,
        "topics set-failure-policy /default/orders -s billing --max-redelivery-count 3 "
        "--ack-timeout-ms 1000 --base-redelivery-delay-ms 10 --max-redelivery-delay-ms 100 "
        "--dead-letter-topic /default/dead --poison-policy dead_letter",
    )
    assert run_json(admin, line) == {
        "topic": "/default/orders",
        "subscription": "billing",
        "subscription_type": "KeyShared",
        "failure_policy": {
            "max_redelivery_count": 3,
            "ack_timeout_ms": 1000,
            "base_redelivery_delay_ms": 10,
            "max_redelivery_delay_ms": 100,
            "backoff_strategy": "Exponential",
            "dead_letter_topic": "/default/dead",
            "poison_policy": "DeadLetter",
        },
        "is_default": False,
    }


@pytest.mark.parametrize("policy", ["block", "drop"])
def test_every_poison_policy_reaches_the_broker(admin: FakeAdmin, policy: str) -> None:
    run_json(
        admin,
        "topics set-failure-policy /default/o -s s --max-redelivery-count 0 --ack-timeout-ms 1 "
        "--base-redelivery-delay-ms 0 --max-redelivery-delay-ms 0 "
        f"--backoff-strategy exponential --poison-policy {policy}",
    )
    sent = admin.last("SetSubscriptionFailurePolicy").failure_policy
    assert sent.poison_policy == {"block": 1, "drop": 2}[policy]
    assert sent.backoff_strategy == 1
    assert not sent.HasField("dead_letter_topic")


def test_what_is_given_of_a_failure_policy_is_set_and_the_rest_stays(admin: FakeAdmin) -> None:
    line = "topics set-failure-policy /default/o -s s"
    run_json(admin, f"{line} --max-redelivery-count 2 --backoff-strategy fixed")
    changed = run_json(admin, f"{line} --poison-policy dead_letter")["failure_policy"]
    assert changed == {
        "max_redelivery_count": 2,
        "ack_timeout_ms": 30_000,
        "base_redelivery_delay_ms": 1_000,
        "max_redelivery_delay_ms": 60_000,
        "backoff_strategy": "Fixed",
        "dead_letter_topic": "/default/o-dlq",
        "poison_policy": "DeadLetter",
    }


def test_a_policy_is_changed_by_the_broker_where_it_can(admin: FakeAdmin) -> None:
    admin.changes_policies = True
    run_json(admin, "topics set-failure-policy /default/o -s s --ack-timeout-ms 7")
    sent = admin.last("UpdateFailurePolicy")
    assert [field.name for field, _ in sent.ListFields()] == [
        "topic",
        "subscription",
        "ack_timeout_ms",
    ]
    assert all(name != "SetSubscriptionFailurePolicy" for name, _ in admin.calls)


def test_a_change_of_nothing_is_refused_with_what_could_be_given(admin: FakeAdmin) -> None:
    result = run(admin, "topics set-failure-policy /default/o -s s")
    assert (result.exit_code, "--poison-policy" in result.stderr) == (2, True)
    assert admin.calls == []


def test_a_policy_is_shown_with_its_values_and_never_as_a_dash(admin: FakeAdmin) -> None:
    shown = run(admin, "topics get-failure-policy /default/orders -s billing").stdout
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert "-" not in lines.values()
    assert (lines["poison_policy"], lines["dead_letter_topic"]) == ("Block", "none")
    assert lines["set"] == "no, these are the defaults"


def test_a_blocked_subscription_is_listed_with_its_offset_its_reason_and_what_to_type(
    admin: FakeAdmin,
) -> None:
    run_json(admin, "topics create /default/orders")
    policy = pb.SubscriptionFailurePolicy(ack_timeout_ms=1, poison_policy=1)
    standing = pb.SubscriptionStanding(
        topic="/default/orders",
        subscription="billing",
        type="Shared",
        state="blocked",
        blocked=1,
        offset=5,
        attempts=6,
        reason="not an Order",
        next_step="danube topics set-failure-policy",
        failure_policy=policy,
    )
    admin.topics["/default/orders"].subscriptions.append("billing")
    admin.topics["/default/orders"].standings.append(standing)
    for line in ("subscriptions list", "topics subscriptions", "topics describe"):
        told = run(admin, f"{line} /default/orders").stdout
        assert "block after 1 attempt" in told
        assert "is blocked at offset 5 after 6 attempts: not an Order" in told
        assert "next: danube topics set-failure-policy" in told
    [listed] = run_json(admin, "subscriptions list /default/orders")
    assert (listed["state"], listed["offset"], listed["attempts"]) == ("blocked", 5, 6)
    assert listed["failure_policy"]["poison_policy"] == "Block"


def test_a_dispatch_config_is_set_and_read_back(admin: FakeAdmin) -> None:
    line = "topics get-dispatch-config /default/orders -s billing"
    assert run_json(admin, line)["dispatch_config"] is None
    run_json(
        admin, "topics set-dispatch-config /default/orders -s billing --max-unacked-messages 500"
    )
    assert run_json(admin, line)["dispatch_config"] == {"max_unacked_messages": 500}


def test_namespaces_are_created_inspected_and_deleted(admin: FakeAdmin) -> None:
    assert run_json(admin, "namespaces create shop") == {"namespace": "shop", "change": "created"}
    run_json(admin, "topics create /shop/orders")
    assert run_json(admin, "namespaces topics shop") == ["/shop/orders"]
    assert run_json(admin, "namespaces policies shop") == {
        "namespace": "shop",
        "policies": {"max_message_size": 100},
    }
    assert run(admin, "namespaces delete shop").exit_code == 5
    run_json(admin, "topics delete /shop/orders")
    run_json(admin, "namespaces delete shop")
    assert run_json(admin, "brokers namespaces") == ["default", "system"]
    assert run(admin, "namespaces create default").exit_code == 6


def test_brokers_are_listed_drained_and_activated(admin: FakeAdmin) -> None:
    assert run_json(admin, "brokers list")[0]["broker_status"] == "active"
    assert run_json(admin, "brokers leader-broker") == {"leader": BROKER_ID}
    drained = run_json(
        admin,
        "brokers unload --broker-id 7 --max-parallel 2 --namespaces-include a,b "
        "--namespaces-exclude c --dry-run --timeout-seconds 5",
    )
    assert (drained["total"], drained["failed_topics"]) == (3, ["/a/b"])
    request = admin.last("UnloadBroker")
    assert (request.broker_id, request.max_parallel, request.timeout_seconds) == ("7", 2, 5)
    assert list(request.namespaces_include) == ["a", "b"]
    assert list(request.namespaces_exclude) == ["c"]
    assert request.dry_run
    assert run_json(admin, "brokers activate 7")["reason"] == "admin_activate"
    run_json(admin, "brokers activate --broker-id 8 --reason mended")
    assert (admin.last("ActivateBroker").broker_id, admin.last("ActivateBroker").reason) == (
        "8",
        "mended",
    )


def test_the_balance_is_shown_and_mended(admin: FakeAdmin) -> None:
    balance = run_json(admin, "brokers balance")
    assert balance["brokers"][0] == {
        "broker_id": BROKER_ID,
        "load": 0.25,
        "topic_count": 3,
        "is_overloaded": False,
        "is_underloaded": False,
    }
    moves = run_json(admin, "brokers rebalance --dry-run --max-moves 4")["proposed_moves"]
    assert (moves[0]["topic"], moves[0]["to_broker"]) == ("/default/a", "2")
    assert admin.last("TriggerRebalance").max_moves == 4
    run_json(admin, "brokers rebalance")
    assert not admin.last("TriggerRebalance").HasField("max_moves")
    assert not admin.last("TriggerRebalance").dry_run


def test_a_cluster_without_leader_is_told(admin: FakeAdmin) -> None:
    admin.leader = "not_found"
    assert run(admin, "brokers leader-broker").exit_code == 3


def test_an_unknown_topic_cannot_be_described(admin: FakeAdmin) -> None:
    result = run(admin, "topics describe /default/nothing")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "error[not_found]: there is no topic /default/nothing" in result.stderr


def test_what_the_broker_refuses_ends_in_its_kinds_exit_code(admin: FakeAdmin) -> None:
    run_json(admin, "topics create /default/orders")
    assert run(admin, "topics create /default/orders").exit_code == 6
    result = run(admin, "topics unload /default/orders")
    assert (result.exit_code, "a broker alone" in result.stderr) == (2, True)
    admin.refusal = CallRefused(StatusCode.UNAVAILABLE, "connection refused")
    result = run(admin, "brokers list")
    assert (result.exit_code, "http://127.0.0.1:50051" in result.stderr) == (8, True)


def test_text_is_a_table_with_whole_lines_for_other_programs(admin: FakeAdmin) -> None:
    name = f"/default/{'o' * 200}"
    run_json(admin, f"topics create {name} --dispatch-strategy reliable")
    assert run(admin, "topics list").stdout.splitlines()[1].split() == [name, BROKER_ID, "Reliable"]
    text = run(admin, f"topics describe {name}").stdout
    assert text.splitlines()[0].split() == ["name", name]
    assert not any(line.endswith(" ") for line in text.splitlines())
    text = run(admin, "brokers balance").stdout
    assert "brokers:" in text
    assert f"{BROKER_ID}" in text


def test_names_cannot_play_tricks_on_the_terminal(admin: FakeAdmin) -> None:
    admin.namespaces.append("evil\x1b[31m[red]")
    assert run(admin, "brokers namespaces").stdout.splitlines()[-1] == "evil\\x1b[31m[red]"
    admin.leader = "[bold]x"
    assert run(admin, "brokers leader-broker").stdout == "leader  [bold]x\n"


def test_an_empty_list_says_so_beside_the_output(admin: FakeAdmin) -> None:
    result = run(admin, "topics list")
    assert (result.stdout, result.stderr) == ("", "(none)\n")


@pytest.mark.parametrize(
    ("line", "environment", "expected"),
    [
        ("brokers list", {}, "http://127.0.0.1:50051"),
        ("brokers list", {"DANUBE_ADMIN_ENDPOINT": "http://e:1"}, "http://e:1"),
        (
            "--endpoint http://g:2 brokers list",
            {"DANUBE_ADMIN_ENDPOINT": "http://e:1"},
            "http://g:2",
        ),
        ("--endpoint http://g:2 brokers list --endpoint http://c:3", {}, "http://c:3"),
    ],
)
def test_the_nearest_endpoint_wins(
    admin: FakeAdmin, line: str, environment: dict[str, str], expected: str
) -> None:
    assert run(admin, line, **environment).exit_code == 0
    assert admin.urls == [expected]


def test_admin_commands_are_found_under_danube_too(admin: FakeAdmin) -> None:
    line = ["topics", "list", "--endpoint", "http://x:1"]
    result = CliRunner().invoke(danube, line, obj=Outside(admin.open_channel))
    assert (result.exit_code, admin.urls) == (0, ["http://x:1"])


def test_a_subscription_is_moved(admin: FakeAdmin) -> None:
    run_json(admin, "topics create /default/orders --dispatch-strategy reliable")
    moved = run_json(admin, "subscriptions seek /default/orders -s billing --to offset:7")
    assert moved == [{"topic": "/default/orders", "subscription": "billing", "offset": 7}]
    assert admin.last("Seek").position == "offset:7"
    run_json(admin, "topics create /default/many --partitions 2 --dispatch-strategy reliable")
    moved = run_json(admin, "subscriptions seek many --namespace default -s billing --to earliest")
    assert [each["topic"] for each in moved] == ["/default/many-part-0", "/default/many-part-1"]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("time:1767225600000", "time:1767225600000"),
        ("time:2026-01-01T00:00:00Z", "time:1767225600000"),
        ("time:2026-01-01T02:00:00.250+02:00", "time:1767225600250"),
        ("latest", "latest"),
    ],
)
def test_a_time_may_be_written_as_people_do(admin: FakeAdmin, given: str, sent: str) -> None:
    run_json(admin, "topics create /default/orders --dispatch-strategy reliable")
    run_json(admin, f"subscriptions seek /default/orders -s billing --to {given}")
    assert admin.last("Seek").position == sent


@pytest.mark.parametrize("given", ["time:soon", "time:2026-01-01T00:00:00"])
def test_a_time_that_is_none_or_says_no_zone_is_refused(admin: FakeAdmin, given: str) -> None:
    result = run(admin, f"subscriptions seek /default/orders -s billing --to {given}")
    assert result.exit_code == 2
    assert "time" in result.output


def test_subscriptions_are_reached_by_their_own_noun_as_well(admin: FakeAdmin) -> None:
    run_json(admin, "topics create /default/orders --dispatch-strategy reliable")
    admin.topics["/default/orders"].subscriptions.append("billing")
    assert run_json(admin, "subscriptions list /default/orders") == ["billing"]
    run_json(admin, "subscriptions unsubscribe /default/orders -s billing")
    assert run_json(admin, "subscriptions list /default/orders") == []


def test_messages_are_given_a_time_to_live(admin: FakeAdmin) -> None:
    run_json(admin, "topics set-message-ttl /default/orders --ttl-ms 60000")
    request = admin.last("SetMessageTtl")
    assert (request.topic, request.ttl_ms) == ("/default/orders", 60_000)
    run_json(admin, "topics set-message-ttl /default/orders")
    assert not admin.last("SetMessageTtl").HasField("ttl_ms")
    assert (
        run_json(admin, "namespaces set-message-ttl default --ttl-ms 0")["namespace"] == "default"
    )
    request = admin.last("SetMessageTtl")
    assert (request.WhichOneof("of"), request.namespace) == ("namespace", "default")
    assert request.HasField("ttl_ms")


def test_topics_and_namespaces_are_given_copies(admin: FakeAdmin) -> None:
    run_json(admin, "topics set-replicas /default/orders --replicas 3")
    request = admin.last("SetReplicas")
    assert (request.topic, request.replicas) == ("/default/orders", 3)
    run_json(admin, "topics set-replicas /default/orders")
    assert not admin.last("SetReplicas").HasField("replicas")
    assert run_json(admin, "namespaces set-replicas default --replicas 2")["namespace"] == "default"
    request = admin.last("SetReplicas")
    assert (request.WhichOneof("of"), request.replicas) == ("namespace", 2)


@pytest.mark.parametrize(
    ("options", "time_ms", "size", "waits"),
    [
        ("--time 36h", 36 * 3_600_000, None, None),
        ("--time 7d --size 10GiB", 7 * 86_400_000, 10 * 2**30, None),
        ("--size 500mib --force", None, 500 * 2**20, False),
        ("--time 0 --size 0 --wait", 0, 0, True),
        ("--time 250ms", 250, None, None),
    ],
)
@pytest.mark.parametrize(
    "of", ["topics set-retention /default/orders", "namespaces set-retention ns"]
)
def test_history_is_kept_as_long_as_told(
    admin: FakeAdmin, of: str, options: str, time_ms: int, size: int, waits: bool
) -> None:
    assert run_json(admin, f"{of} {options}")["own"] == ["time_ms"]
    request = admin.last("SetRetention")
    assert (request.topic, request.namespace) in (("/default/orders", ""), ("", "ns"))
    for name, value in (("time_ms", time_ms), ("bytes", size), ("waits_for_subscriptions", waits)):
        assert request.HasField(name) is (value is not None)
        assert value is None or getattr(request, name) == value


def test_a_topic_may_have_the_retention_of_its_namespace_again(admin: FakeAdmin) -> None:
    run_json(admin, "topics set-retention /default/orders --inherit")
    request = admin.last("SetRetention")
    assert not request.HasField("time_ms")
    assert not request.HasField("bytes")
    assert run_json(admin, "topics retention /default/orders")["time_ms"] == 5
    assert run_json(admin, "namespaces retention default")["waits_for_subscriptions"] is True


@pytest.mark.parametrize(
    "options", ["", "--inherit --time 5s", "--time soon", "--time 5", "--size 3GB", "--time -5s"]
)
def test_a_retention_that_means_nothing_is_refused(admin: FakeAdmin, options: str) -> None:
    result = run(admin, f"topics set-retention /default/orders {options}")
    assert result.exit_code == 2
    assert admin.calls == []
