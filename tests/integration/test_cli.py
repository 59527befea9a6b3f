"""The `danube` command as users run it: processes, a real broker, real files."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess, free_ports

PROGRAMS = Path(sys.executable).parent
RUN_SECONDS_MAX = 60


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAMS / program), *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )


def run_json(program: str, *arguments: str) -> Any:
    done = run(program, *arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def admin(broker: BrokerProcess, line: str) -> Any:
    return run_json("danube-admin", "--endpoint", broker.admin_url, *line.split())


def produce(broker: BrokerProcess, *arguments: str) -> Any:
    return run_json("danube", "produce", "-s", broker.url, *arguments)


def consume(broker: BrokerProcess, *arguments: str) -> list[dict[str, Any]]:
    done = run("danube", "consume", "-s", broker.url, *arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_tour_through_every_command_with_a_restart_in_the_middle(broker: BrokerProcess) -> None:
    admin(broker, "namespaces create shop")
    admin(broker, "topics create /shop/orders --dispatch-strategy reliable --durability fsync")
    described = admin(broker, "topics describe orders --namespace shop")
    assert (described["delivery"], described["durability"]) == ("Reliable", "fsync")
    sent = produce(
        broker,
        *("-t", "/shop/orders", "-m", "one", "--reliable", "-c", "30", "-i", "0"),
        *("--routing-key", "eu", "-a", "unit:box"),
    )
    assert sent["messages"] == 30

    # What was acknowledged before a kill is there after it, and what was acked stays acked.
    first = consume(
        broker,
        *("-t", "/shop/orders", "-m", "billing", "--start-position", "earliest", "--count", "10"),
    )
    assert [message["offset"] for message in first] == list(range(10))
    assert (first[0]["payload"], first[0]["routing_key"]) == ("one", "eu")
    assert first[0]["attributes"]["unit"] == "box"
    broker.kill()
    broker.start()
    rest = consume(
        broker, "-t", "/shop/orders", "-m", "billing", "--count", "20", "--seconds", "20"
    )
    assert [message["offset"] for message in rest] == list(range(10, 30))

    assert admin(broker, "topics subscriptions /shop/orders") == ["billing"]
    admin(broker, "topics set-dispatch-config /shop/orders -s billing --max-unacked-messages 50")
    window = admin(broker, "topics get-dispatch-config /shop/orders -s billing")
    assert window["dispatch_config"] == {"max_unacked_messages": 50}
    admin(
        broker,
        "topics set-failure-policy /shop/orders -s billing --max-redelivery-count 1 "
        "--ack-timeout-ms 5000 --base-redelivery-delay-ms 1 --max-redelivery-delay-ms 5 "
        "--poison-policy drop",
    )
    policy = admin(broker, "topics get-failure-policy /shop/orders -s billing")
    assert policy["failure_policy"]["poison_policy"] == "Drop"
    assert [topic["name"] for topic in admin(broker, "topics list --namespace shop")] == [
        "/shop/orders"
    ]
    assert admin(broker, "namespaces topics shop") == ["/shop/orders"]
    assert "max_message_size" in admin(broker, "namespaces policies shop")["policies"]

    (listed,) = admin(broker, "brokers list")
    assert listed["broker_addr"] == broker.url
    assert admin(broker, "brokers leader-broker")["leader"]
    assert "shop" in admin(broker, "brokers namespaces")
    assert admin(broker, f"topics list --broker {listed['broker_id']}")
    assert admin(broker, "brokers balance")["broker_count"] == 1

    assert run("danube", "namespaces", "delete", "shop", "--endpoint", broker.admin_url).returncode
    admin(broker, "topics unsubscribe /shop/orders -s billing")
    admin(broker, "topics delete /shop/orders")
    admin(broker, "namespaces delete shop")
    assert broker.terminate() == 0


def test_a_broker_alone_is_balanced_and_tells_where_its_metrics_are(broker: BrokerProcess) -> None:
    tried = admin(broker, "brokers rebalance --dry-run")
    assert (tried["success"], tried["proposed_moves"], tried["error_message"]) == (True, [], "")
    (listed,) = admin(broker, "brokers list")
    assert listed["metrics_addr"] == f"127.0.0.1:{broker.metrics_port}"


def test_nacked_messages_come_again(broker: BrokerProcess) -> None:
    produce(broker, "-m", "again", "--reliable")
    where = ("-m", "sub", "--start-position", "earliest", "--seconds", "20")
    (nacked,) = consume(broker, *where, "--count", "1", "--nack")
    (acked,) = consume(broker, *where, "--count", "1")
    assert nacked["offset"] == acked["offset"] == 0
    assert consume(broker, "-m", "sub", "--seconds", "0.5") == []


def test_partitions_and_keys_arrive_through_one_consumer(broker: BrokerProcess) -> None:
    keys = ("--routing-key", "a", "--routing-key", "user-c", "--routing-key", "user-a")
    produce(
        broker, "-t", "/default/p", "-m", "x", "--reliable", "-p", "3", "-c", "9", "-i", "0", *keys
    )
    received = consume(
        broker,
        *("-t", "/default/p", "-m", "s", "--start-position", "earliest"),
        *("--count", "9", "--seconds", "20"),
    )
    places = {(message["routing_key"], message["topic"]) for message in received}
    assert places == {
        ("user-a", "/default/p-part-0"),
        ("a", "/default/p-part-1"),
        ("user-c", "/default/p-part-2"),
    }
    assert admin(broker, "topics describe /default/p")["partitions"] == 3


def test_ctrl_c_ends_a_consumer_with_a_summary_and_exit_code_0(broker: BrokerProcess) -> None:
    produce(broker, "-m", "x", "--reliable")
    arguments = ["consume", "-s", broker.url, "-m", "sub", "--start-position", "earliest"]
    with subprocess.Popen(
        [str(PROGRAMS / "danube"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as consumer:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "/default/test_topic@0: x\n"
        consumer.send_signal(signal.SIGINT)
        _, said = consumer.communicate(timeout=RUN_SECONDS_MAX)
    assert consumer.returncode == 0
    assert said.startswith("received 1 messages")


def on_a_terminal(*arguments: str) -> str:
    """Run `danube` with a terminal for its output, and return all it wrote there."""
    ours, its = os.openpty()
    command = [str(PROGRAMS / "danube"), *arguments]
    with subprocess.Popen(command, stdout=its, stderr=its) as process:
        os.close(its)
        written = b""
        # Reading fails once the last process has closed the terminal.
        with contextlib.suppress(OSError), os.fdopen(ours, "rb", buffering=0) as terminal:
            while data := terminal.read(65_536):
                written += data
        assert process.wait(RUN_SECONDS_MAX) == 0
    return written.decode()


def test_on_a_terminal_progress_is_a_bar_and_a_live_table(broker: BrokerProcess) -> None:
    arguments = ("-m", "x", "--reliable", "-c", "5", "-i", "100")
    written = on_a_terminal("produce", "-s", broker.url, *arguments)
    assert "published" in written
    assert "/5" in written
    assert "acknowledged: 5 messages" in written
    written = on_a_terminal("demo", "--seconds", "1.5")
    assert "audit (Exclusive)" in written
    assert "lost 0; broker stopped cleanly" in written


def test_without_a_broker_the_error_names_the_address_and_the_next_step(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    done = run("danube", "topics", "list", "--endpoint", broker.admin_url)
    assert done.returncode == 8
    assert broker.admin_url in done.stderr
    assert "danube broker --data-dir" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_broker_on_the_same_directory_is_refused(broker: BrokerProcess) -> None:
    free = ("--broker-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0")
    done = run("danube-broker", "--data-dir", str(broker.data_dir), *free)
    assert done.returncode != 0
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_brokers_that_share_a_configuration_are_told_how_to_part_their_journals(
    tmp_path: Path,
) -> None:
    config = tmp_path / "danube_broker.yml"
    wal = tmp_path / "wal"
    config.write_text(
        f"""
cluster_name: SHARED
broker: {{}}
meta_store: {{data_dir: {tmp_path / "raft"}}}
bootstrap_namespaces: [default]
auth: {{}}
storage: {{mode: local, local_wal_root: {wal}}}
policies: {{}}
"""
    )
    ports = [f"127.0.0.1:{port}" for port in free_ports(2)]
    file = ("--config-file", str(config), "--raft-addr", ports[0])
    second = (*file[:3], ports[1], "--data-dir", str(tmp_path / "raft-2"))
    free = ("--broker-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0")
    with BrokerProcess(tmp_path / "data", *file):
        done = run("danube-broker", *second, *free)
        assert done.returncode == 5, done.stderr
        assert f"DANUBE_STORAGE__LOCAL_WAL_ROOT={wal}-2" in done.stderr
    # Nobody uses it now, and yet it is the first one's.
    done = run("danube-broker", *second, *free)
    assert done.returncode == 2, done.stderr
    assert f"DANUBE_STORAGE__LOCAL_WAL_ROOT={wal}-2" in done.stderr
    with BrokerProcess(
        tmp_path / "data", *second, command=["env", parting(done.stderr), str(PROGRAMS / "danube")]
    ) as parted:
        assert admin(parted, "topics list") == []


def parting(told: str) -> str:
    """Return the assignment that a refusal tells to make."""
    return next(word for word in told.split() if word.startswith("DANUBE_"))


def test_a_damaged_journal_is_found_given_up_and_served_again(broker: BrokerProcess) -> None:
    produce(broker, "-m", "x" * 500, "--reliable", "-c", "200", "-i", "0")
    data_dir = ("--data-dir", str(broker.data_dir))
    assert run("danube", "journal", "verify", *data_dir).returncode == 5  # It is in use.
    assert broker.terminate() == 0
    assert run_json("danube", "journal", "verify", *data_dir)["damaged"] == []

    (journal,) = (broker.data_dir / "wal").glob("journal-*.log")
    content = bytearray(journal.read_bytes())
    content[len(content) // 2] ^= 1
    journal.write_bytes(content)
    done = run("danube", "journal", "verify", *data_dir, "--output", "json")
    assert done.returncode == 9
    assert json.loads(done.stdout)["damaged"]

    declined = run("danube", "journal", "quarantine", *data_dir)
    assert declined.returncode != 0
    assert journal.read_bytes() == content
    given_up = run_json("danube", "journal", "quarantine", *data_dir, "--yes")
    (copy,) = given_up["copies"]
    assert Path(copy).read_bytes() == content
    assert run("danube", "journal", "verify", *data_dir).returncode == 0
    broker.start()
    received = consume(broker, "-m", "s", "--start-position", "earliest", "--seconds", "3")
    offsets = [message["offset"] for message in received]
    assert 0 < len(offsets) < 200
    assert offsets == sorted(offsets)


@pytest.mark.parametrize("keep", [False, True])
def test_the_demo_accounts_for_every_message(tmp_path: Path, keep: bool) -> None:
    directory = ("--data-dir", str(tmp_path / "demo")) if keep else ()
    for _ in range(2 if keep else 1):
        account = run_json("danube", "demo", "--seconds", "1.5", *directory)
        assert account["acknowledged"] == account["sent"] > 5
        assert (account["lost"], account["broker_stopped_cleanly"]) == (0, True)
        for subscription in account["subscriptions"]:
            assert subscription["received"] == account["acknowledged"]
    assert (tmp_path / "demo").exists() == keep


def test_the_demo_tells_what_happens_and_ends_on_ctrl_c() -> None:
    with subprocess.Popen(
        [str(PROGRAMS / "danube"), "demo"], stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("published"):
            lines.append(demo.stdout.readline())
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=RUN_SECONDS_MAX)
    assert demo.returncode == 0
    assert lines[0].startswith("broker at http://127.0.0.1:")
    assert rest.splitlines()[-1].endswith("lost 0; broker stopped cleanly")
