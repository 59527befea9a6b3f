"""Whatever somebody writes into a configuration, the answer is a configuration or a sentence."""

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from pydanube.broker.config import BrokerConfig, load_config
from pydanube.broker.config_shape import all_paths, dotted
from pydanube.errors import InvalidRequest
from tests.unit.broker.test_config import MINIMAL

PATHS = [dotted(path) for path in all_paths(BrokerConfig)]
SCALARS = st.none() | st.booleans() | st.integers(-2, 70_000) | st.floats() | st.text(max_size=12)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
TOKENS = "broker:|  ports: |{|}|[|]|- |&a |*a|${X}|${X:-|!!int |? |: |\n|\t|>|'|\"|#|%|---\n|<<|1"
SNIPPETS = st.sampled_from([*TOKENS.split("|"), "|"])


@given(st.lists(SNIPPETS | st.text(max_size=5), max_size=30).map("".join))
def test_no_text_brings_the_reader_down(text: str) -> None:
    with contextlib.suppress(InvalidRequest):
        load_config(MINIMAL + text, {"X": text})


@given(st.dictionaries(st.sampled_from(PATHS), VALUES, max_size=4))
def test_no_value_brings_the_reader_down(overrides: dict[str, object]) -> None:
    with contextlib.suppress(InvalidRequest):
        load_config(MINIMAL, {}, overrides)


@given(st.dictionaries(st.sampled_from(PATHS), st.text(max_size=12), max_size=3))
def test_no_variable_brings_the_reader_down(settings: dict[str, str]) -> None:
    environment = {
        "DANUBE__" + path.replace(".", "__").upper(): value for path, value in settings.items()
    }
    with contextlib.suppress(InvalidRequest):
        load_config(MINIMAL, environment)


PRINTABLE = st.characters(categories=["L", "N", "P", "S", "Zs"])


@given(st.text(PRINTABLE, min_size=1).filter(lambda text: "${" not in text))
def test_a_quoted_text_is_read_as_it_was_written(name: str) -> None:
    lines = "\n".join(line for line in MINIMAL.splitlines() if "cluster_name" not in line)
    quoted = json.dumps(name, ensure_ascii=False)  # What JSON quotes, YAML reads.
    assert load_config(f"{lines}\ncluster_name: {quoted}\n").cluster_name == name
