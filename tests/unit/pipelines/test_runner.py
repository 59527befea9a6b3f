"""Where Spark runs, and how long keys are remembered."""

import pytest

from pydanube.errors import InvalidRequest, NotSupported, Unavailable
from pydanube.pipelines.definitions import Dedupe, SparkSettings, Step, Watermark
from pydanube.pipelines.graph import interval_ms, lengthened
from pydanube.pipelines.reports import FlowPlan, PipelinePlan, SourceWaiting
from pydanube.pipelines.runner import master_of, start_spark


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local", "local[1,4]"),
        ("local[2,1]", "local[2,1]"),
        ("spark://host:7077", "spark://host:7077"),
        ("yarn", "yarn"),
        ("sc://host:15002", "sc://host:15002"),
    ],
)
def test_tasks_of_local_masters_get_four_tries(given, used):
    assert master_of(given) == used


def test_packages_of_a_spark_connect_server_are_its_own_affair():
    settings = SparkSettings(master="sc://127.0.0.1:1", packages=("org.shop:steps:1.0",))
    with pytest.raises(NotSupported, match=r"danube spark server --conf spark\.jars\.packages="):
        start_spark("orders", settings)


def test_a_spark_connect_server_that_does_not_answer_is_named_with_what_to_do():
    with pytest.raises(
        Unavailable, match=r"at sc://127\.0\.0\.1:1; start one there \(danube spark"
    ):
        start_spark("orders", SparkSettings(master="sc://127.0.0.1:1"))


def test_an_address_that_is_none_is_refused():
    with pytest.raises(InvalidRequest, match="sc://host:words is no address"):
        start_spark("orders", SparkSettings(master="sc://host:words"))


def test_a_session_gets_the_promise_about_rows(monkeypatch):
    given = []
    monkeypatch.setattr("pydanube.spark.session", lambda *_, **conf: given.append(conf))
    for master in ("local[2]", "sc://127.0.0.1:1"):
        start_spark("orders", SparkSettings(master=master, row_bytes_max="16k"))
    assert [conf["row_bytes_max"] for conf in given] == ["16k", "16k"]


def test_a_watermark_waits_as_long_as_keys_are_remembered():
    def step(within: str) -> Step:
        return Step(name="d", from_="a", dedupe=Dedupe(keys=("k",), within=within, time="t"))

    mark = Watermark(column="t", delay="90 minutes")
    assert lengthened(mark, (step("1 hour"),)) == mark
    assert lengthened(mark, (step("1 hour"), step("2 HOURS"))).delay == "2 HOURS"
    assert lengthened(mark, ()) == mark
    assert interval_ms(" 1.5 seconds") == 1500


def test_a_plan_reads_well():
    flow = FlowPlan(
        flow="lake",
        target="shop.orders",
        sources=("orders: /default/orders",),
        stateful=False,
        guarantee="exactly once",
        reason="one commit",
        checkpoint="/c: none yet",
        waiting=(
            SourceWaiting(source="orders", start={"/default/orders": 7}, rows=1500, bytes=9000),
        ),
        refusals=("no",),
    )
    assert PipelinePlan(pipeline="p", flows=[flow]).text().splitlines() == [
        "p/lake → shop.orders",
        "  reads       orders: /default/orders",
        "  guarantee   exactly once: one commit",
        "  state       none",
        "  checkpoint  /c: none yet",
        "  starts      orders: /default/orders 7",
        "  waiting     orders: 1,500 rows, 9,000 bytes",
        "  REFUSED     no",
    ]
