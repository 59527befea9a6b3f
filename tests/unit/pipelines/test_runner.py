"""Where Spark runs, and how long keys are remembered."""

import pytest

from pydanube.errors import NotSupported
from pydanube.pipelines.definitions import Dedupe, Step, Watermark
from pydanube.pipelines.graph import interval_ms, lengthened
from pydanube.pipelines.reports import FlowPlan, PipelinePlan, SourceWaiting
from pydanube.pipelines.runner import master_of


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local", "local[1,4]"),
        ("local[2,1]", "local[2,1]"),
        ("spark://host:7077", "spark://host:7077"),
        ("yarn", "yarn"),
    ],
)
def test_tasks_of_local_masters_get_four_tries(given, used):
    assert master_of(given) == used


def test_spark_connect_is_refused_with_the_reason():
    with pytest.raises(NotSupported, match="committed by this process"):
        master_of("sc://127.0.0.1:15002")


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
