"""What the guide to pipelines shows runs as it stands there."""

import re
from pathlib import Path

import pytest

from pydanube.pipelines.documents import read_definition
from pydanube.pipelines.graph import check_graph
from tools.tidy import FENCE

GUIDE = Path("docs/guides/pipelines.md")


def fences(info: str) -> list[str]:
    text = GUIDE.read_text(encoding="utf-8")
    return [match["body"] for match in FENCE.finditer(text) if match["info"].strip() == info]


@pytest.mark.parametrize("code", fences("python spark"), ids=str.__len__)
def test_a_snippet_runs(code, spark, broker, tmp_path):
    code = code.replace("http://127.0.0.1:6650", broker.url)
    code = re.sub(r"/var/lib/danube", str(tmp_path), code)
    exec(compile(code, str(GUIDE), "exec"), {"__name__": "guide"})


def test_the_guide_holds_snippets():
    assert fences("python spark")


@pytest.mark.parametrize("text", fences("yaml"), ids=str.__len__)
def test_a_file_of_the_guide_is_right(text):
    definition, places = read_definition(text, str(GUIDE), {})
    check_graph(definition, places)
    assert {"delta", "iceberg", "danube"} == {sink.format for sink in definition.sinks}
