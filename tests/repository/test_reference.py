"""The reference pages say all that there is to say, and what they say is true."""

import inspect
from pathlib import Path

import click
import pytest

import pydanube
from pydanube.broker.config import BrokerConfig
from pydanube.broker.config_shape import all_paths, dotted, section_of, type_at
from pydanube.cli.main import danube
from pydanube.observability.metric_table import METRICS
from tools import generate_reference, tidy

PAGES = generate_reference.generate()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    path = tidy.REPOSITORY / "docs/reference" / name
    assert path.read_text(encoding="utf-8") == PAGES[name], "run `make generate`"


def test_a_stale_page_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_reference, "TARGET", tmp_path)
    for name, text in PAGES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert generate_reference.check(PAGES) == 0
    (tmp_path / "errors.md").write_text("old", encoding="utf-8")
    assert generate_reference.check(PAGES) == 1


def test_every_setting_has_a_line_with_its_meaning() -> None:
    page = PAGES["configuration.md"]
    for path in all_paths(BrokerConfig):
        if section_of(type_at(BrokerConfig, path)):
            assert f"## {dotted(path)}\n" in page
        else:
            (line,) = [each for each in page.splitlines() if f"| `{dotted(path)}` |" in each]
            assert not line.endswith("|  |"), f"{dotted(path)} has no description"


def test_every_metric_has_a_line() -> None:
    page = PAGES["metrics.md"]
    for metric in METRICS:
        assert f"| `{metric.name}` | {metric.kind} |" in page
        assert metric.help.endswith(".")


def test_no_metric_is_declared_twice() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_every_error_code_has_a_line_and_a_class_of_one_meaning() -> None:
    kinds = generate_reference.error_kinds()
    for kind in kinds:
        assert f'<a id="{kind.code}"></a>' in PAGES["errors.md"]
    own = [kind.code for kind in generate_reference.all_error_classes() if "code" in vars(kind)]
    assert len(own) == len(set(own)), "two kinds of error share a code"


def test_every_command_is_shown() -> None:
    def walk(command: click.Command, path: str, above: click.Context | None) -> None:
        assert f"## {path}\n" in PAGES["cli.md"]
        assert command.help, f"{path} has no help"
        context = click.Context(command, info_name=path.split()[-1], parent=above)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None, f"{path} {name} cannot be loaded"
                walk(inner, f"{path} {name}", context)

    walk(danube, "danube", None)


def test_every_public_name_exists_and_is_documented() -> None:
    for name in pydanube.__all__:
        thing = getattr(pydanube, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"pydanube.{name} has no docstring"
            page = (
                "errors.md"
                if inspect.isclass(thing) and issubclass(thing, Exception)
                else "python.md"
            )
            assert (thing.code if page == "errors.md" else f"## {name}\n") in PAGES[page]
