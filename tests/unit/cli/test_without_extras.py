"""Commands for which a package is missing say which, and how to install it."""

import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pydanube.cli.exit_codes import OF_EXTRA_SPARK
from pydanube.cli.lazy import GuardedCommand

ORDERS = "examples/orders/orders.yml"
WITHOUT = """
import sys
absent = sys.argv[1].split(",")
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from pydanube.cli.main import danube
danube(sys.argv[2:])
"""


def run_without_spark(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, ",".join(OF_EXTRA_SPARK), *command.split()],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    "command",
    [
        "demo --spark",
        f"pipeline plan {ORDERS}",
        f"pipeline run {ORDERS}",
        f"pipeline replay {ORDERS} --flow totals --into again",
        "spark shell",
        "spark server",
        f"spark submit {ORDERS}",
        "spark replay /default/orders --into totals",
        "spark verify /default/orders",
        "spark compact /default/orders",
        "table list",
        "table enable /default/orders",
        "table run",
    ],
)
def test_a_command_that_needs_the_extra_spark_says_so(command: str) -> None:
    done = run_without_spark(command)
    assert done.returncode == 2, done.stderr
    error, remedy = done.stderr.splitlines()
    assert error.startswith("error[not_supported]: the package ")
    assert remedy == "next: pip install 'pydanube[spark]'"


@pytest.mark.parametrize("verb", ["status", "stop"])
def test_flows_can_be_watched_and_stopped_where_there_is_no_spark(
    verb: str, tmp_path: Path
) -> None:
    done = run_without_spark(f"pipeline {verb} orders --checkpoints {tmp_path}")
    assert done.returncode == 3, done.stderr
    assert "no flow of orders" in done.stderr


def test_every_package_of_the_extra_is_known() -> None:
    wanted = {
        line.partition("[")[0].partition(">")[0].lower()
        for line in requires("pydanube") or ()
        if line.endswith("extra == 'spark'") or line.endswith('extra == "spark"')
    }
    modules = {
        module
        for module, owners in packages_distributions().items()
        if wanted & {owner.lower() for owner in owners}
    }
    # Parts of packages that others install as well, or that nothing of ours imports.
    assert {"pyspark", "deltalake"} <= OF_EXTRA_SPARK & modules
    assert modules - OF_EXTRA_SPARK <= {"google", "fb303", "hive_metastore"}


def test_another_missing_package_is_a_bug_with_its_traceback() -> None:
    @click.command(cls=GuardedCommand)
    def fail() -> None:
        raise ModuleNotFoundError("No module named 'theirs'", name="theirs")

    assert isinstance(CliRunner().invoke(fail).exception, ModuleNotFoundError)
