"""Source, sink and schemas over TLS, to a broker that wants to see a certificate."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pydanube.errors import InvalidRequest, Unavailable
from pydanube.spark import brokers
from pydanube.spark.brokers import Patience
from pydanube.spark.data_source import schema_of
from pydanube.spark.options import Access, access_of, write_options
from pydanube.spark.registry import ask
from pydanube.spark.sink.frames import check_frame
from pydanube.spark.sink.numbering import TaskIdentity
from pydanube.spark.sink.task import WritingTask
from pydanube.testing import broker as testing_broker
from pydanube.testing.broker import Broker
from pydanube.wire.http2.engine import Http2Engine
from tests.support.certificates import Authority, Installed
from tests.support.spark_readers import reader, rows_of
from tests.support.spark_topics import payload

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


class SecureBroker(Broker):
    """A broker behind TLS; its clients show certificates."""

    @property
    def url(self) -> str:
        return super().url.replace("http://127.0.0.1", "https://localhost")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    installed = Installed(tmp_path_factory.mktemp("installed"), clients=authority)
    installed.put(*authority.sign("server"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing_broker, "engine_named", lambda _: Http2Engine(tls=installed.files()))
        running = SecureBroker()
        running.start()
    yield running
    running.stop()


@pytest.fixture
def identity(authority: Authority) -> dict[str, str]:
    certificate, key = authority.sign("spark")
    return {"tlsCa": str(authority.certificate), "tlsCert": str(certificate), "tlsKey": str(key)}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "Patience", lambda: Patience(give_up_seconds=1.0))
    monkeypatch.setattr(brokers, "_of_this_process", {})


def write(broker: Broker, topic: str, count: int, **options: str) -> int:
    given = write_options({"url": broker.url, "topic": topic, **options}, streaming=True)
    columns = check_frame([("payload", "binary")], given)
    rows = pa.record_batch({"payload": [payload(number) for number in range(count)]})
    task = WritingTask(given, columns, TaskIdentity(owner="spark/q", epoch=0, task=0))
    return task.run(iter([rows])).stored


def test_rows_are_written_and_read_with_a_certificate_and_a_token(
    broker, topic, identity, tmp_path: Path
):
    (tmp_path / "token").write_text("opensesame\n")
    known = {**identity, "tokenFile": str(tmp_path / "token")}
    assert write(broker, topic, 300, **known) == 300
    rows = rows_of(reader(broker, topic=topic, **known))
    assert [bytes(row["payload"]) for row in rows] == [payload(number) for number in range(300)]


def known_access(broker: Broker, identity: dict[str, str]) -> Access:
    return access_of({"url": broker.url, **identity}, "http://127.0.0.1:1")


def test_schemas_are_asked_for_with_a_certificate_and_a_token(broker, topic, identity, tmp_path):
    (tmp_path / "token").write_text("opensesame\n")
    known = {**identity, "tokenFile": str(tmp_path / "token")}
    definition = json.dumps({"type": "object", "properties": {"number": {"type": "integer"}}})
    access = known_access(broker, known)
    ask(access, lambda schemas: schemas.register("secured", definition))
    write(broker, topic, 3, **known)
    ask(
        access,
        lambda schemas: schemas.configure_topic(
            topic, "secured", policy="none", validate_payloads=False
        ),
    )
    assert "value STRUCT<`number`: BIGINT>" in schema_of(
        {"url": broker.url, "topic": topic, "decode": "schema", **known}
    )


def test_without_a_certificate_no_schema_is_told(broker, identity):
    access = known_access(broker, {"tlsCa": identity["tlsCa"]})
    with pytest.raises(Unavailable, match=r"https://localhost:\d+"):
        ask(access, lambda schemas: schemas.get("secured"))


def test_certificates_that_do_not_fit_together_are_refused(broker, identity, authority):
    other = {**identity, "tlsKey": str(authority.sign("other")[1])}
    with pytest.raises(InvalidRequest, match="options tlsCa, tlsCert and tlsKey name no"):
        ask(known_access(broker, other), lambda schemas: schemas.get("secured"))


def test_without_a_certificate_nothing_is_read_and_the_address_is_named(broker, topic, identity):
    with pytest.raises(Unavailable, match=r"https://localhost:\d+"):
        reader(broker, topic=topic, tlsCa=identity["tlsCa"]).partitions()


def test_a_broker_that_nobody_trusted_signed_is_not_talked_to(broker, topic, identity, tmp_path):
    stranger = Authority(tmp_path, "stranger")
    known = {**identity, "tlsCa": str(stranger.certificate)}
    with pytest.raises(Unavailable, match=r"https://localhost:\d+"):
        reader(broker, topic=topic, **known).partitions()


def test_a_file_that_is_not_there_is_named_with_its_option(broker, topic, identity):
    with pytest.raises(InvalidRequest, match=r"option tlsKey: /nowhere cannot be read"):
        reader(broker, topic=topic, **{**identity, "tlsKey": "/nowhere"}).partitions()
