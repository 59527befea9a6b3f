"""Pipelines as Declarative Pipelines: what is written declares the graph; traps are refused."""

from typing import Any

import pytest
import yaml
from pyspark.pipelines.flow import Flow
from pyspark.pipelines.graph_element_registry import (
    GraphElementRegistry,
    graph_element_registration_context,
)
from pyspark.pipelines.output import Output

from pydanube.pipelines.documents import read_definition
from pydanube.pipelines.errors import InvalidPipeline
from pydanube.pipelines.graph import check_graph
from pydanube.pipelines.sdp import SPEC, TRANSFORMATIONS, Project, export

GOOD = """\
pipeline: orders
parameters: {least: 5}
danube: {url: "http://127.0.0.1:6650"}
spark: {master: "local[2]", conf: {spark.sql.shuffle.partitions: 4}}
checkpoints: file:///checkpoints
sources:
  orders: {topic: /default/orders, start: "-10m", watermark: {column: publish_time, delay: 1 hour}}
  names: {format: parquet, path: /lake/names, mode: static}
steps:
  - {name: flat, sql: "SELECT o.*, 'from orders' AS word FROM orders o JOIN names n ON true"}
  - {name: valid, from: flat, expect: [{name: big, check: "offset > ${least}", otherwise: drop}]}
  - {name: deduped, from: valid, dedupe: {keys: [offset], within: 1 hour, time: publish_time}}
  - {name: scored, from: deduped, python: "shop.steps:score"}
  - {name: big, sql: "SELECT payload FROM scored;"}
sinks:
  - {name: to-topic, from: big, format: danube, topic: /default/big}
  - {name: files, from: valid, format: parquet, path: /lake/big/}
"""


class Registry(GraphElementRegistry):
    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.flows: list[Flow] = []

    def register_output(self, output: Output) -> None:
        self.outputs.append(output)

    def register_flow(self, flow: Flow) -> None:
        self.flows.append(flow)

    def register_auto_cdc_flow(self, flow: Any) -> None:
        raise AssertionError("there is no such flow")

    def register_sql(self, sql_text: str, file_path: Any) -> None:
        raise AssertionError("there is no SQL file")


class Recorder:
    """Stands for Spark: notes what is called, and returns itself."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._name = ""

    def __getattr__(self, name: str) -> "Recorder":
        self._name = name
        return self

    def __call__(self, *arguments: Any, **options: Any) -> "Recorder":
        self.calls.append((self._name, arguments, options))
        return self


def exported(text: str = GOOD) -> Project:
    definition, places = read_definition(text, "orders.yml", {})
    check_graph(definition, places)
    return export(definition, "/project", places)


def declared(project: Project) -> tuple[Registry, Recorder]:
    registry, spark = Registry(), Recorder()
    with graph_element_registration_context(registry):
        code = compile(project.files[TRANSFORMATIONS], TRANSFORMATIONS, "exec")
        exec(code, {"__name__": "pipeline", "spark": spark})
    return registry, spark


def called(flow: Flow, spark: Recorder) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    spark.calls.clear()
    flow.func()
    return list(spark.calls)


def test_the_module_declares_views_sinks_and_flows():
    registry, spark = declared(exported())
    assert [each.name for each in registry.outputs] == [
        "orders", "names", "flat", "valid", "deduped", "scored", "big", "to_topic", "files",
    ]  # fmt: skip
    flows = {each.name: each for each in registry.flows}
    assert flows["into_to_topic"].target == "to_topic"
    (_, (name,), _), (_, (), options), _, (_, mark, _) = called(flows["orders"], spark)
    assert (name, mark) == ("danube", ("publish_time", "1 hour"))
    assert options["topic"] == "/default/orders"
    assert options["startingTimestamp"] == "-10m"
    assert "startingOffsets" not in options
    assert "subscription" not in options, "two flows would move one cursor"
    assert called(flows["flat"], spark) == [
        (
            "sql",
            ("SELECT o.*, 'from orders' AS word FROM STREAM(orders) o JOIN names n ON true",),
            {},
        )
    ]
    assert called(flows["big"], spark)[0][1] == ("SELECT payload FROM STREAM(scored)",)
    assert called(flows["valid"], spark)[1:] == [("where", ("coalesce(offset > 5, false)",), {})]
    sinks = {each.name: each for each in registry.outputs}
    assert sinks["files"].options == {"path": "/lake/big-sdp"}
    assert sinks["to_topic"].options["topic"] == "/default/big"
    assert sinks["to_topic"].options["order"] == "sorted"


def test_the_specification_avoids_the_traps():
    project = exported()
    spec = yaml.safe_load(project.files[SPEC])
    assert spec["storage"] == "file:///checkpoints/orders/sdp"
    configuration = spec["configuration"]
    assert configuration["spark.sql.shuffle.partitions"] == "4"
    assert configuration["spark.sql.session.timeZone"] == "UTC"
    assert all(isinstance(each, str) for each in configuration.values())
    assert "--remote 'local[2]' --conf spark.connect.grpc.binding.address=127.0.0.1" in (
        project.command
    )


def test_a_promise_about_rows_is_kept_unless_settings_say_otherwise():
    rows = "spark.sql.execution.arrow.maxRecordsPerBatch"
    measured = "spark.sql.execution.arrow.maxBytesPerBatch"

    def configuration(settings: str) -> dict[str, str]:
        text = GOOD.replace("conf: {spark.sql.shuffle.partitions: 4}", settings)
        return yaml.safe_load(exported(text).files[SPEC])["configuration"]

    assert measured not in configuration("conf: {}")
    promised = configuration("row_bytes_max: 64k")
    assert (promised[rows], promised[measured]) == ("1024", "2147483647")
    assert configuration(f"row_bytes_max: 64k, conf: {{{rows}: 7}}")[rows] == "7"


def test_what_spark_has_from_its_start_is_given_to_its_start():
    # Every flow sets the specification's settings anew, and fails at one that cannot change.
    conf = "spark.sql.warehouse.dir: /lake, spark.executor.cores: 2, spark.sql.ansi.enabled: false"
    project = exported(
        GOOD.replace("spark.sql.shuffle.partitions: 4", conf).replace("local[2]", "local[2,4]")
    )
    configuration = yaml.safe_load(project.files[SPEC])["configuration"]
    assert configuration["spark.sql.ansi.enabled"] == "false"
    assert not {"spark.sql.warehouse.dir", "spark.executor.cores"} & set(configuration)
    assert "--remote 'local[2]'" in project.command
    assert "--conf spark.sql.warehouse.dir=/lake --conf spark.executor.cores=2" in project.command


def test_keys_are_remembered_as_long_as_in_the_pipeline_itself():
    registry, spark = declared(exported(GOOD.replace("within: 1 hour", "within: 2 hours")))
    (orders,) = [each for each in registry.flows if each.name == "orders"]
    assert called(orders, spark)[-1][1] == ("publish_time", "2 hours")


def test_the_cursor_of_a_source_that_one_flow_reads_shows_its_progress():
    one = GOOD[: GOOD.index("  - {name: files")]
    registry, spark = declared(exported(one))
    (orders,) = [each for each in registry.flows if each.name == "orders"]
    assert called(orders, spark)[1][2]["subscription"] == "orders.sdp.orders"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("otherwise: drop", "otherwise: fail", "11: steps[1].expect: it has no expectations"),
        (
            "format: parquet, path: /lake/big/",
            "format: delta, path: /lake/big",
            "17: sinks[1].format: delta needs a sink that commits from Python",
        ),
        (
            "format: parquet, path: /lake/names",
            "format: delta, path: /lake/names",
            "8: sources.names.format: Spark reads no Delta",
        ),
        (
            "column: publish_time",
            "column: value.at",
            "7: sources.orders.watermark.column: value.at is made by a later step",
        ),
        (
            "FROM orders o JOIN names n ON true",
            "FROM names n, orders o",
            "10: steps[0].sql: names orders elsewhere than behind FROM or JOIN",
        ),
        (
            "topic: /default/big}",
            "topic: /default/big, trigger: {continuous: true}}",
            "16: sinks[0].tr",
        ),
        ('master: "local[2]"', "master: yarn", "4: spark.master: it always goes through Connect"),
        (
            "spark.sql.shuffle.partitions: 4",
            "spark.master: yarn",
            "4: spark.conf.spark.master: is refused there",
        ),
        (
            'master: "local[2]", conf: {spark.sql.shuffle.partitions: 4}',
            'master: "sc://127.0.0.1:15002", conf: {spark.executor.cores: 2}',
            "4: spark.conf: the Spark Connect server has spark.executor.cores from its start",
        ),
        (
            'python: "shop.steps:score"',
            'state: {class: "shop.steps:Score", keys: [offset]}',
            "13: steps[3].state: it has no such steps",
        ),
    ],
)
def test_what_cannot_be_carried_over_is_refused_with_its_line(old, new, expected):
    assert old in GOOD
    with pytest.raises(InvalidPipeline) as refused:
        exported(GOOD.replace(old, new, 1))
    assert f"orders.yml:{expected}" in str(refused.value)


def test_two_flows_into_one_parquet_table_are_refused():
    more = "  - {name: more, from: valid, format: parquet, path: /lake/big}\n"
    with pytest.raises(InvalidPipeline, match="two flows into one parquet table"):
        exported(GOOD + more)
