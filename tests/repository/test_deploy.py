"""What deploy/ starts: every setting, flag, port, path and file it names exists."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

from pydanube.broker.config import BrokerConfig, load_config
from pydanube.broker.shared_metadata import advertised_raft_address
from pydanube.cli.broker import command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROBES = {"readinessProbe": "/readyz", "livenessProbe": "/healthz"}
S3 = {"S3_ACCESS_KEY": "key", "S3_SECRET_KEY": "secret"}


@cache
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return document


@cache
def kubernetes() -> dict[str, Any]:
    """The manifest's documents by kind and name."""
    documents = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in documents}


@cache
def dockerfile() -> list[tuple[str, str]]:
    """The instructions and what follows each of them."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def pod() -> dict[str, Any]:
    template: dict[str, Any] = kubernetes()["StatefulSet/danube"]["spec"]["template"]["spec"]
    return template


def container() -> dict[str, Any]:
    (broker,) = pod()["containers"]
    return dict(broker)


def flags(arguments: list[str]) -> dict[str, Any]:
    """Return what `danube broker` understands; unknown flags end the test."""
    assert arguments[0] == "broker"
    rest = [each for each in arguments[1:] if each != "--config-file"]
    path = arguments[arguments.index("--config-file") + 1]
    rest.remove(path)
    with command.make_context("broker", rest) as context:
        return {**context.params, "config_file": path}


def compose_configs() -> list[BrokerConfig]:
    text = (DEPLOY / "danube_broker.yml").read_text()
    return [
        load_config(text, service["environment"], insecure=flags(service["command"])["insecure"])
        for service in compose()["services"].values()
    ]


def kubernetes_configs(name: str) -> list[BrokerConfig]:
    text = kubernetes()["ConfigMap/danube"]["data"][name]
    insecure = flags(container()["args"])["insecure"]
    return [
        load_config(text, {"POD_NAME": f"danube-{number}", **S3}, insecure=insecure)
        for number in range(kubernetes()["StatefulSet/danube"]["spec"]["replicas"])
    ]


def raft_address(config: BrokerConfig) -> str:
    url = config.broker.advertised_listeners.broker_url
    assert url is not None
    return advertised_raft_address(config.broker.raft_address, url)


@pytest.mark.parametrize("name", ["compose", "shared_fs.yml", "object_store.yml"])
def test_the_brokers_are_the_seed_nodes_they_name(name: str) -> None:
    configs = compose_configs() if name == "compose" else kubernetes_configs(name)
    assert len(configs) == 3
    for config in configs:
        assert list(config.meta_store.seed_nodes) == [raft_address(each) for each in configs]
        assert config.storage.mode in ("shared_fs", "object_store")
        url = urlsplit(config.broker.advertised_listeners.broker_url or "")
        assert url.port == config.broker.ports.client


def test_containers_are_reached_by_the_names_they_are_told() -> None:
    for name, service in compose()["services"].items():
        assert service["hostname"] == service["environment"]["BROKER_NAME"] == name
    headless = kubernetes()["Service/danube"]["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"]
    assert kubernetes()["StatefulSet/danube"]["spec"]["serviceName"] == "danube"
    assert raft_address(kubernetes_configs("shared_fs.yml")[0]).startswith("danube-0.danube:")


def test_published_ports_are_those_of_the_brokers() -> None:
    for service, config in zip(compose()["services"].values(), compose_configs(), strict=True):
        ports = config.broker.ports
        published = [each.split(":") for each in service["ports"]]
        assert {int(inner) for _, _, inner in published} == {
            *(ports.client, ports.admin, ports.prometheus)
        }
        # Clients go where lookups send them, so that the port must be the same outside.
        assert ["127.0.0.1", str(ports.client), str(ports.client)] in published
        assert {host for host, _, _ in published} == {"127.0.0.1"}
    taken = [each for one in compose()["services"].values() for each in one["ports"]]
    assert len({each.split(":")[1] for each in taken}) == len(taken)


def test_kubernetes_ports_are_those_of_the_brokers() -> None:
    ports = kubernetes_configs("shared_fs.yml")[0].broker.ports
    expected = {
        "client": ports.client,
        "admin": ports.admin,
        "raft": ports.raft,
        "metrics": ports.prometheus,
    }
    assert {each["name"]: each["containerPort"] for each in container()["ports"]} == expected
    for name in ("Service/danube", "Service/danube-brokers"):
        for port in kubernetes()[name]["spec"]["ports"]:
            assert expected[port["name"]] == port["port"]


def test_probes_ask_the_pages_that_brokers_have() -> None:
    for probe, path in PROBES.items():
        assert container()[probe]["httpGet"] == {"path": path, "port": "metrics"}
    for service, config in zip(compose()["services"].values(), compose_configs(), strict=True):
        asked = service["healthcheck"]["test"][-1]
        assert f"http://127.0.0.1:{config.broker.ports.prometheus}/readyz" in asked
        compile(asked, "healthcheck", "exec")


def is_below(path: str, mounts: list[str]) -> bool:
    return any(Path(path).is_relative_to(mount) for mount in mounts)


def test_everything_a_broker_keeps_is_in_a_volume() -> None:
    for service, config in zip(compose()["services"].values(), compose_configs(), strict=True):
        volumes = [each.split(":") for each in service["volumes"]]
        check_places(config, [each[1] for each in volumes], flags(service["command"]))
        for source, *_ in volumes:
            is_file = source.startswith("./") and (DEPLOY / source).is_file()
            assert is_file or source in compose()["volumes"]
        own = next(source for source, target, *_ in volumes if target == "/var/lib/danube")
        assert own == service["hostname"]
    mounts = {each["name"]: each["mountPath"] for each in container()["volumeMounts"]}
    for name in ("shared_fs.yml", "object_store.yml"):
        config = kubernetes_configs(name)[0]
        check_places(config, list(mounts.values()), flags(container()["args"]))
        assert f"{mounts['config']}/{name}" in (DEPLOY / "kubernetes.yaml").read_text()
    claims = kubernetes()["StatefulSet/danube"]["spec"]["volumeClaimTemplates"]
    named = {each["name"] for each in pod()["volumes"]} | {
        each["metadata"]["name"] for each in claims
    }
    assert set(mounts) == named


def check_places(config: BrokerConfig, mounts: list[str], given: dict[str, Any]) -> None:
    assert is_below(config.meta_store.data_dir, mounts)
    assert is_below(config.storage.local_wal_root, mounts)
    if config.storage.mode == "shared_fs":
        assert config.storage.durable is not None
        assert config.storage.durable.root in mounts
    assert is_below(given["config_file"], mounts)


def test_selectors_find_the_pods() -> None:
    labels = kubernetes()["StatefulSet/danube"]["spec"]["template"]["metadata"]["labels"]
    for name in ("Service/danube", "Service/danube-brokers"):
        assert kubernetes()[name]["spec"]["selector"] == labels
    for name in ("StatefulSet/danube", "PodDisruptionBudget/danube"):
        assert kubernetes()[name]["spec"]["selector"]["matchLabels"] == labels
    for volume in pod()["volumes"]:
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            assert f"PersistentVolumeClaim/{claim}" in kubernetes()


def test_brokers_may_finish_their_handovers() -> None:
    longest = max(each.storage.segments.shutdown_seconds for each in compose_configs())
    assert pod()["terminationGracePeriodSeconds"] > longest
    for service in compose()["services"].values():
        assert int(service["stop_grace_period"].removesuffix("s")) > longest


def test_the_image_is_built_of_what_exists() -> None:
    context = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for word, rest in dockerfile():
        if word == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source.removeprefix('./')}" in context
    for service in compose()["services"].values():
        build = service["build"]
        assert (DEPLOY / build["context"]).resolve() == ROOT
        assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
        assert service["image"] == container()["image"]


def test_the_image_runs_a_command_of_the_package() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    entry = dict(dockerfile())["ENTRYPOINT"]
    assert entry == '["danube"]'
    assert "danube" in scripts
    locked = (ROOT / "requirements/run.lock").read_text()
    assert re.search(r"^hatchling==", locked, re.MULTILINE), (
        "the package is built without a network"
    )
    exposed = {int(port) for port in dict(dockerfile())["EXPOSE"].split()}
    assert exposed == {each["containerPort"] for each in container()["ports"]}
    user = dict(dockerfile())["USER"]
    assert pod()["securityContext"]["runAsUser"] == int(user)
    assert f"--uid {user}" in "".join(rest for word, rest in dockerfile() if word == "RUN")


def test_a_flag_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(click.NoSuchOption):
        flags(["broker", "--config-file", "/etc/danube/x.yml", "--unsafe"])
