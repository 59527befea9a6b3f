import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from pydanube.cli.broker import command as broker
from pydanube.cli.lazy import LazyGroup
from pydanube.cli.main import danube, danube_admin, danube_cli

HEAVY = ("grpc", "rich", "pyarrow", "google.protobuf", "msgspec", "asyncio", "yaml", "uvloop")


def all_commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from all_commands(found, (*path, name))


@pytest.mark.parametrize("program", ["danube", "danube_admin", "danube_cli"])
def test_help_loads_nothing_heavy(program: str) -> None:
    code = (
        "import sys\n"
        f"from pydanube.cli.main import {program} as program\n"
        "try:\n"
        "    program(['--help'])\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Commands:" in done.stdout
    assert done.stdout.splitlines()[-1] == "LOADED []"


def test_importing_the_package_loads_nothing_heavy_and_still_offers_everything() -> None:
    code = (
        "import sys, pydanube\n"
        f"assert not [name for name in {HEAVY!r} if name in sys.modules]\n"
        "for name in pydanube.__all__:\n"
        "    assert getattr(pydanube, name) is not None\n"
        "assert set(pydanube.__all__) <= set(dir(pydanube))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", list(all_commands(danube, ())), ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(danube, [*path, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage: danube" in result.output


@pytest.mark.parametrize("program", [danube, danube_cli, danube_admin], ids=lambda p: p.name)
def test_the_summary_in_a_list_is_the_one_of_the_command(program: LazyGroup) -> None:
    for name, found in program.commands_at.items():
        command = program.get_command(click.Context(program), name)
        assert command is not None
        assert found.summary == command.get_short_help_str(limit=200)


def test_the_programs_of_the_danube_documentation_have_their_commands() -> None:
    assert list(danube_cli.commands_at) == ["produce", "consume", "schema"]
    assert list(danube_admin.commands_at) == [
        "topics",
        "schemas",
        "namespaces",
        "brokers",
        "cluster",
    ]
    theirs = set(danube_cli.commands_at) | set(danube_admin.commands_at)
    assert theirs - set(danube.commands_at) == {"schema"}, "which `schemas` stands for"


@pytest.mark.parametrize(
    ("path", "flags"),
    [
        (
            ("broker",),
            "--mode --config-file --broker-addr --admin-addr --prom-exporter --raft-addr "
            "--advertised-addr --connect-url --data-dir --seed-nodes --join --insecure --engine "
            "--log-format --log-level",
        ),
        (
            ("produce",),
            "-s --service-addr -n --producer-name -t --topic -m --message -f --file -a "
            "--attributes -p --partitions -c --count -i --interval --reliable --schema-subject "
            "--schema-version --schema-min-version --schema-file --schema-type --routing-key "
            "--output",
        ),
        (
            ("consume",),
            "-s --service-addr -t --topic -n --consumer -m --subscription --sub-type --key-filter "
            "--nack --start-position --count --seconds --output",
        ),
        (
            ("topics", "create"),
            "--namespace --partitions --schema-subject --dispatch-strategy --durability",
        ),
        (("topics", "list"), "--namespace --broker"),
        (
            ("topics", "configure-schema"),
            "--subject --validation-policy --enable-payload-validation",
        ),
        (("topics", "set-validation-policy"), "--policy --enable-payload-validation"),
        (("topics", "get-schema-config"), "--namespace"),
        (
            ("schemas", "register"),
            "SUBJECT --schema-type --file --schema --description --tags",
        ),
        (("schemas", "get"), "--id --version --subject"),
        (("schemas", "versions"), "SUBJECT"),
        (("schemas", "get-compatibility"), "SUBJECT"),
        (("schemas", "check"), "SUBJECT --file --schema --schema-type --mode"),
        (("schemas", "set-compatibility"), "SUBJECT --mode"),
        (("schemas", "delete"), "SUBJECT --version --confirm --force"),
        (("schemas", "list-subjects"), "--output"),
        (("schemas", "diff"), "SUBJECT --from --to"),
        (("topics", "unsubscribe"), "-s --subscription --namespace"),
        (
            ("topics", "set-failure-policy"),
            "-s --max-redelivery-count --ack-timeout-ms --base-redelivery-delay-ms "
            "--max-redelivery-delay-ms --backoff-strategy --dead-letter-topic --poison-policy",
        ),
        (("topics", "set-dispatch-config"), "-s --max-unacked-messages"),
        (
            ("brokers", "unload"),
            "--broker-id --max-parallel --namespaces-include --namespaces-exclude --dry-run "
            "--timeout-seconds",
        ),
        (("brokers", "activate"), "--broker-id --reason"),
        (("brokers", "rebalance"), "--dry-run --max-moves"),
        (("cluster", "add-node"), "--node-addr"),
        (("cluster", "promote-node"), "--node-id"),
        (("cluster", "remove-node"), "--node-id"),
        (("cluster", "up"), "--brokers --data-dir --first-port --replicas --seconds"),
        (("demo",), "--seconds --port --data-dir --output"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "flags",
)
def test_documented_flags_exist(path: tuple[str, ...], flags: str) -> None:
    output = CliRunner().invoke(danube, [*path, "--help"]).output
    assert [flag for flag in flags.split() if flag not in output] == []


def test_every_admin_command_takes_an_endpoint_and_prints_json() -> None:
    for path in all_commands(danube_admin, ()):
        if len(path) == 2 and path != ("cluster", "up"):  # Which asks nobody: it runs brokers.
            output = CliRunner().invoke(danube_admin, [*path, "--help"]).output
            assert "--endpoint" in output, path
            assert "--output" in output, path


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(danube, ["--version"])
    assert result.output == "danube 0.1.0\n"


def test_danube_broker_is_the_broker_command_under_its_documented_name() -> None:
    result = CliRunner().invoke(broker, ["--help"], prog_name="danube-broker")
    assert result.output.startswith("Usage: danube-broker [OPTIONS]")


def test_an_unknown_command_is_refused_with_the_usage() -> None:
    result = CliRunner().invoke(danube, ["tropics"])
    assert result.exit_code == 2
    assert "No such command 'tropics'" in result.output
