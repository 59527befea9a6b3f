"""A kind of sink is one file and one entry point: checks, plan, write and guarantee follow."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from pydanube.errors import InvalidRequest
from pydanube.pipelines.documents import read_definition
from pydanube.pipelines.errors import InvalidPipeline
from pydanube.pipelines.graph import check_graph, flows_of
from pydanube.pipelines.planning import promise
from pydanube.pipelines.sinks import catalog
from pydanube.pipelines.sinks.kind import Promise, SinkKind, Written

PIPELINE = """
pipeline: orders
checkpoints: /data/checkpoints
sources: {orders: {topic: /default/orders}}
sinks: [{name: out, from: orders, format: FORMAT}]
"""


class ToySink(SinkKind):
    """The file that somebody adds."""

    def problems(self, sink: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if "drawer" not in sink.options:
            yield ("options",), "needs drawer: where toys go"

    def promise(self, sink: Any, unversioned: Any) -> Promise:
        return Promise("at least once", "toys are not counted")

    def write(self, sink: Any, frame: Any, batch: Any, danube: Any, *, ordered: bool) -> Written:
        return Written(rows=len(frame))


@pytest.fixture
def with_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("toy", f"{__name__}:ToySink", catalog.ENTRY_POINT_GROUP)
    installed = {**catalog._installed(), "toy": entry}
    monkeypatch.setattr(EntryPoint, "load", lambda found: ToySink if found is entry else None)
    monkeypatch.setattr(catalog, "_installed", lambda: installed)
    catalog._load.cache_clear()
    yield
    catalog._load.cache_clear()


def definition_of(sink: str) -> Any:
    return read_definition(PIPELINE.replace("FORMAT", sink), "orders.yaml", {})


@pytest.mark.usefixtures("with_toys")
def test_a_sink_of_another_package_is_checked_planned_and_written() -> None:
    definition, places = definition_of("toy, options: {drawer: top}")
    check_graph(definition, places)
    (flow,) = flows_of(definition)
    assert promise(flow) == Promise("at least once", "toys are not counted")
    kind = catalog.kind_of(flow.sink)
    assert kind.write(flow.sink, ["a", "b"], None, {}, ordered=True).rows == 2
    assert kind.table(flow.sink) is None, "what it does not say has a default"


@pytest.mark.usefixtures("with_toys")
def test_its_own_mistakes_are_named_with_their_lines() -> None:
    definition, places = definition_of("toy")
    with pytest.raises(InvalidPipeline, match=r"5: sinks\[0\]\.options: needs drawer"):
        check_graph(definition, places)


def test_a_kind_that_nobody_brought_along_is_refused() -> None:
    with pytest.raises(InvalidPipeline, match="'toy' is none of console, danube, delta"):
        definition_of("toy")
    with pytest.raises(InvalidRequest, match="there are console, danube, delta"):
        catalog._load("toy")


def test_every_kind_of_ours_is_found() -> None:
    names = ["console", "danube", "delta", "iceberg", "noop", "parquet", "sql"]
    assert catalog.kind_names() == names
    assert all(isinstance(catalog._load(name), SinkKind) for name in names)
