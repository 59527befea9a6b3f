"""Pipeline files are checked whole, and every mistake is named with its line and the remedy."""

import pytest

from pydanube.pipelines.definitions import PipelineDefinition
from pydanube.pipelines.documents import read_definition
from pydanube.pipelines.errors import InvalidPipeline
from pydanube.pipelines.graph import check_graph, flows_of

GOOD = """\
pipeline: orders
parameters: {min_amount: 0.01, lake: "file:///lake", strict: true}
danube: {url: "http://127.0.0.1:6650", token_file: "${env:TOKEN_FILE}"}
checkpoints: file:///checkpoints
trigger: {every: 5s}
sources:
  orders:
    topic: /default/orders
    start: 2026-11-15T08:00:00Z
    watermark: {column: publish_time, delay: 10 minutes}
  customers: {format: delta, path: "${lake}/customers", mode: static}
steps:
  - {name: flat, sql: "SELECT *, 'customers' AS word FROM orders"}
  - name: valid
    from: flat
    expect:
      - {name: positive, check: "amount >= ${min_amount}", otherwise: dead_letter}
  - {name: deduped, from: valid, dedupe: {keys: [id], within: 1 hour, time: publish_time}}
  - {name: named, sql: "SELECT d.*, c.name FROM deduped d JOIN Customers c USING (id)"}
  - {name: big, sql: "SELECT id AS routing_key, amount FROM valid WHERE amount > 1000"}
sinks:
  - {name: lake, from: named, format: delta, path: "${lake}/orders"}
  - {name: alerts, from: big, format: danube, topic: /default/alerts, encode: json}
dead_letter: {topic: /default/orders-dlq}
"""


def read(text: str = GOOD, **parameters) -> PipelineDefinition:
    definition, places = read_definition(text, "orders.yml", {"TOKEN_FILE": "/run/t"}, parameters)
    check_graph(definition, places)
    return definition


def refusal(text: str, **parameters) -> str:
    with pytest.raises(InvalidPipeline) as refused:
        read(text, **parameters)
    return str(refused.value)


def test_a_file_becomes_flows():
    lake, alerts = flows_of(read())
    assert list(lake.sources) == ["orders", "customers"]
    assert [step.name for step in lake.steps] == ["flat", "valid", "deduped", "named"]
    # A name inside a text of the SQL is no table.
    assert list(alerts.sources) == ["orders"]
    assert [step.name for step in alerts.steps] == ["flat", "valid", "big"]


def test_parameters_and_the_environment_are_filled_in():
    definition = read(min_amount=5)
    assert definition.steps[1].expect[0].check == "amount >= 5"
    assert definition.danube.token_file == "/run/t"
    assert definition.sources["customers"].path == "file:///lake/customers"


def test_a_parameter_that_stands_alone_keeps_its_type():
    text = GOOD.replace("trigger: {every: 5s}", "trigger: {continuous: '${strict}'}")
    assert read(text).trigger.continuous is True


def test_only_numbers_true_and_false_are_no_text():
    assert read().sources["orders"].start == "2026-11-15T08:00:00Z"
    assert (
        read(GOOD.replace("start: 2026-11-15T08:00:00Z", "start: on")).sources["orders"].start
        == "on"
    )


def test_two_dollars_are_one():
    text = GOOD.replace("'customers' AS word", "'$${x}' AS word")
    assert "'${x}'" in read(text).steps[0].sql


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "topic: /default/orders\n",
            "topik: /default/orders\n",
            "8: sources.orders.topik: there is no such key; did you mean topic?",
        ),
        (
            "  orders:\n",
            "  orders:\n    start: latest\n",
            "10: sources.orders.start: stands twice, first in line 8; keep one of them",
        ),
        (
            "otherwise: dead_letter",
            "otherwise: drp",
            "17: steps[1].expect[0].otherwise: 'drp' is none of fail, drop, warn, "
            "dead_letter; did you mean drop?",
        ),
        ("${min_amount}", "${min}", "17: steps[1].expect[0].check: there is no parameter min"),
        (
            "${env:TOKEN_FILE}",
            "${env:NOPE}",
            "3: danube.token_file: the environment variable NOPE is not set",
        ),
        ("name: big", "name: b i g", "20: steps[4].name: 'b i g' is no name"),
        ("name: big", "name: Flat", "20: steps[4].name: Flat is taken"),
        ("name: alerts", "name: lake", "23: sinks[1].name: lake is taken"),
        ("format: danube,", "", "23: sinks[1]: the key format is missing"),
        ("from: big,", "from: bug,", "23: sinks[1].from: there is no bug; there are orders"),
        ("every: 5s", "every: soon", "5: trigger: 'soon' is no length of time"),
        ("every: 5s", "every: 5s, continuous: true", "5: trigger: give one of"),
        (
            "dead_letter: {topic: /default/orders-dlq}",
            "",
            "17: steps[1].expect[0].otherwise: sends rows to dead letters, and there are none",
        ),
        (
            "    watermark: {column: publish_time, delay: 10 minutes}\n",
            "",
            "17: steps[2].dedupe: needs a watermark",
        ),
        (
            "SELECT id AS",
            "SELECT uuid() AS",
            "20: steps[4].sql: uuid gives another answer when a batch is repeated",
        ),
        ("SELECT id AS", "SELECT Current_Date AS", "20: steps[4].sql: Current_Date gives another"),
        ("FROM valid WHERE", "FROM walid WHERE", "20: steps[4].sql: reads none of"),
        (
            'format: delta, path: "${lake}/orders"}',
            "format: hudi}",
            "22: sinks[0].format: 'hudi' is none of console, danube, delta, iceberg, noop, parquet",
        ),
        (
            'format: delta, path: "${lake}/orders"}',
            "format: iceberg, table: orders, catalog: {type: sql}}",
            "22: sinks[0].table: a sink of Iceberg is a table by name",
        ),
        (
            'format: delta, path: "${lake}/orders"}',
            "format: iceberg, table: shop.orders, catalog: {type: none}}",
            "22: sinks[0].catalog: of type none needs warehouse",
        ),
        (
            'format: delta, path: "${lake}/orders"}',
            "format: iceberg, table: a.b.c, catalog: {type: none, warehouse: /data}}",
            "22: sinks[0].table: of a catalog of type none is namespace.name",
        ),
        (
            'format: delta, path: "${lake}/orders"}',
            "format: iceberg, table: shop.orders}",
            "22: sinks[0].catalog: type is one of rest, sql",
        ),
        (
            'format: delta, path: "${lake}/orders"}',
            "format: iceberg, table: shop.orders, catalog: {type: sql}, mode: upsert, key: [id], "
            'partition_by: ["day(publish_time)"]}',
            "22: sinks[0].partition_by: rows of a table by day or hour cannot be replaced",
        ),
        (
            'format: delta, path: "${lake}/orders"}',
            "format: sql, table: orders}",
            "22: sinks[0]: an sql sink needs url",
        ),
        (
            'format: delta, path: "${lake}/orders"}',
            'format: sql, url: "sqlite://", table: a.b.c}',
            "22: sinks[0].table: a sink of a database is a table by name",
        ),
        (
            'format: delta, path: "${lake}/orders"}',
            'format: delta, path: "${lake}/orders", url: "sqlite://"}',
            "22: sinks[0]: table, catalog and url are for iceberg and sql sinks",
        ),
        (
            "dead_letter: {topic: /default/orders-dlq}",
            "dead_letter: {table: shop.dlq}",
            "24: dead_letter.catalog: type is one of",
        ),
        ("mode: static", "mode: stream", "11: sources.customers: a delta source is looked up"),
        (
            "checkpoints: file:///checkpoints",
            "checkpoints: s3://x",
            "4: checkpoints: 's3://x' is no directory",
        ),
        (
            "within: 1 hour",
            "within: soon",
            "18: steps[2].dedupe.within: 'soon' is no length of time",
        ),
        (
            "checkpoints: file:///checkpoints",
            "spark: {row_bytes_max: 16 kilos}\ncheckpoints: file:///checkpoints",
            "4: spark.row_bytes_max: '16 kilos' is no size",
        ),
        ("pipeline: orders", "pipeline: [", ""),
    ],
)
def test_a_mistake_is_named_with_its_line(old, new, expected):
    assert old in GOOD
    assert f"orders.yml:{expected}" in refusal(GOOD.replace(old, new, 1))


def test_all_mistakes_are_named_at_once():
    text = GOOD.replace("name: big", "nam: big").replace("format: danube", "format: dan")
    said = refusal(text.replace("trigger:", "triger:"))
    assert [line.partition(" ")[0] for line in said.splitlines()] == [
        "orders.yml:5:", "orders.yml:20:", "orders.yml:20:", "orders.yml:23:",
    ]  # fmt: skip


def test_a_parameter_that_is_not_declared_is_refused():
    assert "nope is given but not declared" in refusal(GOOD, nope=1)


def test_two_flows_into_one_parquet_table_are_refused():
    text = GOOD.replace('format: delta, path: "${lake}/orders"', "format: parquet, path: /lake/x")
    text = text.replace(
        "format: danube, topic: /default/alerts, encode: json",
        "format: parquet, path: file:///lake/x/",
    )
    assert "two flows into one parquet table" in refusal(text)


def test_chance_may_flow_into_sinks_that_promise_less():
    text = GOOD.replace("SELECT id AS", "SELECT uuid() AS")
    definition = read(text.replace("encode: json", "encode: json, guarantee: at_least_once"))
    assert "at_least_once" in [each.guarantee for each in definition.sinks]


def test_a_file_without_keys_is_refused():
    for text in ("", "3", "- a"):
        assert "must hold keys such as pipeline" in refusal(text)
