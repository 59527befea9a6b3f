import gc
import subprocess
import sys

import pytest

from pydanube.spark import workers
from pydanube.spark.workers import keep_what_is_loaded


@pytest.fixture(autouse=True)
def _a_new_process_of_spark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "_kept", [])
    monkeypatch.setattr(workers, "_is_sparks_own", lambda: True)
    yield
    gc.unfreeze()


def test_what_is_loaded_is_looked_through_no_more() -> None:
    keep_what_is_loaded()
    assert gc.get_freeze_count() > len(gc.get_objects())


def test_what_later_tasks_make_is_still_collected() -> None:
    keep_what_is_loaded()
    frozen = gc.get_freeze_count()
    circle: list[object] = []
    circle.append(circle)
    keep_what_is_loaded()
    assert gc.get_freeze_count() <= frozen
    del circle
    assert gc.collect() >= 1


_PROGRAM = """
import gc, sys
from importlib.machinery import ModuleSpec
from pydanube.spark import workers
sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None) if sys.argv[1] else None
kept = []
workers.keep_freed_memory = kept.append
workers.use_memory_again()
workers.keep_what_is_loaded()
assert bool(kept) == (gc.get_freeze_count() > 0)
print(gc.get_freeze_count() > 0)
"""


@pytest.mark.parametrize(
    ("program", "frozen"), [("pyspark.daemon", True), ("shop.jobs", False), ("", False)]
)
def test_only_processes_of_spark_are_touched(program: str, frozen: bool) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == str(frozen)
