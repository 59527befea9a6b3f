import gc

import pytest

from pydanube.spark import workers
from pydanube.spark.workers import keep_what_is_loaded


@pytest.fixture(autouse=True)
def _a_new_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "_kept", [])
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
