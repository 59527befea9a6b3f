"""Every pair of schemas is judged as the tables say, and as other implementations judge it."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.schema import parse as parse_avro

from pydanube.schemas.compatibility import check
from pydanube.schemas.limits import SchemaLimits
from tests.support.schema_cases import load_cases, parse

FORMATS = ("avro", "json_schema", "protobuf")
MODES = ("backward", "forward")
CASES = [
    pytest.param(format_name, case, mode, id=f"{format_name}-{case['name']}-{mode}")
    for format_name in FORMATS
    for case in load_cases(format_name)
    for mode in MODES
]


@pytest.mark.parametrize(("format_name", "case", "mode"), CASES)
def test_the_verdict_and_its_reasons_are_those_of_the_table(
    format_name: str, case: dict[str, Any], mode: Any
) -> None:
    old, new = parse(format_name, case["old"]), parse(format_name, case["new"])
    refusals = check(mode, new, [old])
    faults = [refusal.incompatibility for refusal in refusals]
    reasons = [f"{fault.path or '(root)'}: {fault.rule}" for fault in faults]
    expected = [] if case[mode] == "ok" else case[mode]
    assert reasons == expected
    assert all(fault.writer_side and fault.reader_side for fault in faults)


@pytest.mark.parametrize("case", load_cases("avro"), ids=lambda case: case["name"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore::avro.errors.IgnoredLogicalType")
def test_avros_own_checker_agrees(case: dict[str, Any], mode: str) -> None:
    old, new = parse_avro(json.dumps(case["old"])), parse_avro(json.dumps(case["new"]))
    writer, reader = (old, new) if mode == "backward" else (new, old)
    verdict = ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)
    allowed = verdict.compatibility is SchemaCompatibilityType.compatible
    if mode in case.get("differs", {}):
        assert allowed != (case[mode] == "ok"), "the reason why it differs is out of date"
    else:
        assert allowed == (case[mode] == "ok"), verdict.messages


@pytest.mark.parametrize("case", load_cases("json_schema"), ids=lambda case: case["name"])
def test_a_witness_shows_that_the_reader_refuses_what_the_writer_may_write(
    case: dict[str, Any],
) -> None:
    for mode, witness in case.get("witness", {}).items():
        assert case[mode] != "ok"
        writer, reader = case["old"], case["new"]
        if mode == "forward":
            writer, reader = reader, writer
        assert jsonschema_rs.is_valid(writer, witness)
        assert not jsonschema_rs.is_valid(reader, witness)


def test_the_tables_hold_enough_cases_of_every_format() -> None:
    for format_name in FORMATS:
        cases = load_cases(format_name)
        assert len(cases) >= 60
        assert len({case["name"] for case in cases}) == len(cases)


def test_every_rule_is_explained_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "schemas.md").read_text("utf-8")
    rules = {
        reason.partition(": ")[2]
        for format_name in FORMATS
        for case in load_cases(format_name)
        for mode in MODES
        if case[mode] != "ok"
        for reason in case[mode]
    }
    bounds = {rule for rule in rules if rule.startswith(("min", "max", "exclusive"))}
    assert {rule for rule in rules - bounds if f"`{rule}`" not in page} == set()


def test_every_limit_is_listed_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "schemas.md").read_text("utf-8")
    for name in SchemaLimits.__struct_fields__:
        assert f"`{name}`" in page
