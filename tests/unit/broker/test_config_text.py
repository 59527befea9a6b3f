"""How settings are read: sources, their order, and what is said about mistakes."""

from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from pydanube.broker.config_text import SettingsReader
from pydanube.broker.errors import InvalidConfig


class Ports(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    client: Annotated[int, Meta(ge=0, le=65535)] = 6650
    metrics: Annotated[int, Meta(ge=0, le=65535)] | None = None


class Login(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    secret: str
    strict: bool = True
    mode: Literal["none", "no"] = "none"


class House(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    ports: Ports = Ports()
    login: Login | None = None
    rooms: tuple[str, ...] = ()
    options: dict[str, str] = {}
    share: float = 0.5


def read(text: str, environment: dict[str, str] | None = None, **flags: object) -> House:
    reader = SettingsReader(House)
    reader.add_text(text, environment or {})
    reader.add_environment(environment or {})
    reader.add_values({name.replace("__", "."): flags[name] for name in flags}, "command line")
    return reader.build()


def refusal(text: str, environment: dict[str, str] | None = None, **flags: object) -> str:
    with pytest.raises(InvalidConfig) as caught:
        read(text, environment, **flags)
    return str(caught.value)


def test_a_file_gives_values_and_the_rest_keeps_its_default() -> None:
    house = read("name: north\nports:\n  client: 7000\nrooms: [hall, attic]\nshare: 0.25\n")
    assert house == House(
        name="north", ports=Ports(client=7000), rooms=("hall", "attic"), share=0.25
    )


def test_flags_win_over_environment_which_wins_over_text() -> None:
    text = "name: text\nports: {client: 1, metrics: 1}\nshare: 0.1\n"
    environment = {"DANUBE_PORTS__CLIENT": "2", "DANUBE_PORTS__METRICS": "2"}
    assert read(text, environment, ports__metrics=3).ports == Ports(client=2, metrics=3)


def test_a_top_level_setting_is_named_with_two_underscores_in_the_environment() -> None:
    assert read("name: a", {"DANUBE__NAME": "b"}).name == "b"


def test_variables_of_the_tools_are_not_settings() -> None:
    environment = {"DANUBE_ADMIN_ENDPOINT": "x", "DANUBE_NAME": "y", "OTHER__NAME": "z"}
    assert read("name: a", environment).name == "a"


def test_environment_texts_take_the_type_of_their_setting() -> None:
    environment = {
        "DANUBE__NAME": "12",
        "DANUBE_LOGIN__SECRET": "true",
        "DANUBE_LOGIN__STRICT": "false",
        "DANUBE__ROOMS": "hall, attic",
        "DANUBE_OPTIONS__REGION": "7",
    }
    house = read("", environment)
    assert house.name == "12"
    assert house.login == Login(secret="true", strict=False)
    assert house.rooms == ("hall", "attic")
    assert house.options == {"region": "7"}


def test_an_unknown_variable_is_refused_by_its_name() -> None:
    text = refusal("name: a", {"DANUBE_PORTS__CLINET": "1"})
    assert text == (
        "DANUBE_PORTS__CLINET: ports.clinet is not a setting; did you mean ports.client?"
    )


def test_an_unknown_key_names_its_line_and_the_nearest_setting() -> None:
    assert refusal("name: a\nports:\n  clinet: 1\n") == (
        "line 3: ports.clinet is not a setting; did you mean ports.client?"
    )


def test_a_setting_in_the_wrong_section_is_shown_its_place() -> None:
    assert refusal("name: a\nmetrics: 1\n") == (
        "line 2: metrics is not a setting; did you mean ports.metrics?"
    )


def test_a_wrong_type_names_path_and_line() -> None:
    assert refusal("name: a\nports:\n  client: soon\n") == (
        "line 3: ports.client: Expected int, got str"
    )


def test_a_number_out_of_range_is_refused_from_every_source() -> None:
    assert "Expected int <= 65535" in refusal("name: a\nports: {client: 70000}\n")
    assert "DANUBE_PORTS__CLIENT: ports.client: Expected int <= 65535" in refusal(
        "name: a", {"DANUBE_PORTS__CLIENT": "70000"}
    )
    assert "command line: ports.client" in refusal("name: a", ports__client=70000)


def test_all_problems_are_told_at_once() -> None:
    text = refusal("nmae: a\nports:\n  client: soon\n")
    assert text.splitlines() == [
        "the configuration has 3 problems:",
        "line 1: nmae is not a setting; did you mean name?",
        "line 3: ports.client: Expected int, got str",
        "name is required",
    ]


def test_a_required_setting_of_a_section_is_missed_only_when_the_section_is_there() -> None:
    assert read("name: a").login is None
    assert refusal("name: a\nlogin:\n") == "login.secret is required"


def test_an_empty_section_takes_its_defaults() -> None:
    assert read("name: a\nports:\n").ports == Ports()
    assert read("name: a\nports: {}\n").ports == Ports()


def test_a_plain_value_is_no_section() -> None:
    assert refusal("name: a\nports: 6650\n") == "line 2: ports must be a section of settings"


def test_a_key_given_twice_is_refused() -> None:
    assert refusal("name: a\nports: {client: 1}\nname: b\n") == "line 3: name is given twice"


@pytest.mark.parametrize("word", ["no", "yes", "on", "off", "n", "y"])
def test_words_that_older_yaml_takes_for_booleans_are_words(word: str) -> None:
    assert read(f"name: {word}").name == word
    assert refusal(f"name: a\nlogin: {{secret: s, strict: {word}}}\n") == (
        "line 2: login.strict: Expected bool, got str; write true or false"
    )


@pytest.mark.parametrize("text", ["010", "66:50", "2026-01-01", "0x10", "1e3", "<<"])
def test_texts_that_older_yaml_takes_for_numbers_or_dates_are_texts(text: str) -> None:
    assert read(f"name: {text}").name == text
    assert "Expected int" in refusal(f"name: a\nports: {{client: {text}}}\n")


def test_numbers_may_be_grouped() -> None:
    assert read("name: a\nports: {client: 6_650}").ports.client == 6650


def test_substitution_fills_in_the_environment() -> None:
    environment = {"PLACE": "north", "PORT": "7000", "EMPTY": "", "SHARE": "0.9"}
    house = read(
        'name: "house-${PLACE}-${EMPTY:-x}${EMPTY}"\n'
        "ports:\n"
        "  client: ${PORT}\n"
        '  metrics: "${NONE:-7001}"\n'
        "share: ${SHARE:-0.1}\n"
        "rooms:\n"
        "- $PLACE\n"
        "- ${PLACE}\n"
        "- $${PLACE}\n",
        environment,
    )
    assert house.name == "house-north-x"
    assert house.ports == Ports(client=7000, metrics=7001)
    assert house.share == 0.9
    assert house.rooms == ("$PLACE", "north", "${PLACE}")


def test_what_is_substituted_cannot_add_settings() -> None:
    assert read("name: ${X}", {"X": "a\nshare: 1.0"}).name == "a\nshare: 1.0"


def test_a_missing_variable_is_named() -> None:
    text = refusal("name: ${PLACE}")
    assert "line 1: name needs the environment variable PLACE, which is not set" in text


def test_what_is_not_yaml_names_the_line() -> None:
    assert refusal("name: a\nports: [\n").startswith("line 3: the configuration is not YAML")
    assert refusal("- a\n- b\n").startswith("the configuration must consist of settings")
    assert "not YAML" in refusal("name: \x00")


@pytest.mark.parametrize(
    "text",
    [
        "a: &x {b: *x}",
        "? [a]\n: b\n",
        "name: !!python/object:os.system x",
        "name: !!bool x",
        "name: !!int ''",
        "rooms: [[a]]",
    ],
)
def test_exotic_yaml_is_refused(text: str) -> None:
    refusal(text)


def test_the_older_name_of_a_setting_is_followed_unless_both_are_given() -> None:
    reader = SettingsReader(House)
    reader.add_text("name: a\ndoors: {client: 1}\n", {})
    reader.move(("doors",), ("ports",))
    assert reader.build().ports.client == 1

    reader = SettingsReader(House)
    reader.add_text("name: a\nports: {client: 2}\ndoors: {client: 1}\n", {})
    reader.move(("doors",), ("ports",))
    with pytest.raises(InvalidConfig, match=r"line 3: doors\.client is an older name of ports"):
        reader.build()
