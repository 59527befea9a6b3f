"""Iceberg tables without a catalogue in a real S3: its conditions are what commits rest on."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from msgspec import structs
from pyiceberg.table import StaticTable

from pydanube.errors import AccessDenied, Conflict, DanubeError, InvalidRequest, NotSupported
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.randomness import SystemRandomness
from pydanube.spark.source.planning import Limits
from pydanube.storage.config import Durable
from pydanube.storage.segments.operators import Patience
from pydanube.tables.bare_catalog import BareCatalog, open_bare_catalog
from pydanube.tables.export_rules import ExportRules
from pydanube.tables.exporter import Exporter
from pydanube.tables.iceberg import IcebergLakeTable
from pydanube.tables.numbered_files import BucketFiles, check_files
from pydanube.tables.ranges import TableTools
from tests.support.faulty_proxy import Fault, faulty_proxy
from tests.support.lake_tables import MemoryTopic, SchemaShelf, export_all, race
from tests.support.object_store_servers import seaweedfs

HASTY = Patience(
    answer_seconds=3.0,
    transfer_seconds=3.0,
    retries=2,
    first_delay_seconds=0.01,
    last_delay_seconds=0.02,
)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Durable]:
    with seaweedfs(tmp_path_factory.mktemp("s3")) as durable:
        yield durable


@pytest.fixture
def properties(bucket: Durable, request: pytest.FixtureRequest) -> dict[str, str]:
    """A warehouse of the test's own."""
    return properties_of(structs.replace(bucket, root=f"s3://events/{request.node.name}"))


def properties_of(bucket: Durable) -> dict[str, str]:
    return {
        "warehouse": str(bucket.root),
        "s3.endpoint": str(bucket.endpoint),
        "s3.region": "us-east-1",
        "s3.access-key-id": str(bucket.access_key),
        "s3.secret-access-key": str(bucket.secret_key),
    }


def schemas() -> SchemaShelf:
    shelf = SchemaShelf()
    shelf.add(1, 1, {"id": {"type": "integer"}})
    return shelf


def exporter(catalog: BareCatalog, topic: MemoryTopic) -> Exporter:
    tools = TableTools(
        source=topic,
        main=IcebergLakeTable(catalog, "shop.orders", topic.topic),
        dead=IcebergLakeTable(catalog, "shop.orders__dlq", topic.topic),
        schemas=schemas(),
        clock=SystemClock(),
        randomness=SystemRandomness(),
    )
    return Exporter(tools, ExportRules(limits=Limits(rows=5)))


def ids_by_path(properties: dict[str, str]) -> list[int]:
    """Read the table as anybody does, by its directory."""
    found = StaticTable.from_metadata(f"{properties['warehouse']}/shop/orders", properties)
    return sorted(found.scan().to_arrow().column("id").to_pylist())


def test_three_exporters_race_in_a_bucket_and_the_table_is_exact(
    properties: dict[str, str],
) -> None:
    topic = MemoryTopic()
    topic.publish(*({"id": number} for number in range(15)), schema=(1, 1))

    def export() -> int:
        return export_all(exporter(open_bare_catalog("lake", properties), topic))

    assert race(export) == 3
    assert ids_by_path(properties) == list(range(15))


@pytest.mark.parametrize("fault", ["lost answer", "503", "cut"])
def test_calls_that_fail_neither_lose_nor_repeat_a_row(
    properties: dict[str, str], fault: Fault
) -> None:
    topic = MemoryTopic()
    topic.publish({"id": 0}, schema=(1, 1))
    export_all(exporter(open_bare_catalog("lake", properties), topic))
    topic.publish({"id": 1}, schema=(1, 1))
    with faulty_proxy(properties["s3.endpoint"]) as proxy:
        # Data and manifests go straight to the bucket: what fails is the commit.
        behind = {**properties, "s3.endpoint": proxy.url}
        files = BucketFiles(properties["warehouse"], behind, HASTY)
        catalog = BareCatalog("lake", files, SystemRandomness(), properties)
        catalog.prove()
        create, created = files.create, []

        def failing(path: str, content: bytes) -> bool:
            proxy.faults.append(fault)
            created.append(create(path, content))
            return created[-1]

        files.create = failing  # type: ignore[method-assign]
        assert export_all(exporter(catalog, topic)) == 1
        assert (created, proxy.met) == ([True], [fault])
    assert ids_by_path(properties) == [0, 1]


def test_the_newest_version_is_found_without_the_hint(properties: dict[str, str]) -> None:
    topic = MemoryTopic()
    topic.publish({"id": 0}, schema=(1, 1))
    catalog = open_bare_catalog("lake", properties)
    export_all(exporter(catalog, topic))
    files = BucketFiles(properties["warehouse"], properties)
    assert files.read("shop/orders/metadata/version-hint.text") == b"2"
    files.delete("shop/orders/metadata/version-hint.text")
    found = files.names("shop/orders/metadata/v")
    assert found == ["v1.metadata.json", "v2.metadata.json"]
    assert files.names("shop/orders/") == ["data", "metadata"]
    assert catalog.load_table("shop.orders").metadata_location.endswith("v2.metadata.json")


def test_a_prefix_of_something_else_is_refused(properties: dict[str, str]) -> None:
    files = BucketFiles(properties["warehouse"], properties)
    files.replace("shop/orders/_delta_log/00000000000000000000.json", b"{}")
    topic = MemoryTopic()
    topic.publish({"id": 0}, schema=(1, 1))
    with pytest.raises(Conflict, match="is a Delta table"):
        exporter(open_bare_catalog("lake", properties), topic).export()


@pytest.mark.parametrize(
    ("name", "value", "kind", "remedy"),
    [
        ("s3.secret-access-key", "wrong", AccessDenied, r"check s3\.access-key-id"),
        ("warehouse", "s3://nowhere/lake", InvalidRequest, "create the bucket"),
        ("s3.endpoint", "http://127.0.0.1:1", DanubeError, r"check s3\.endpoint"),
    ],
)
def test_a_bucket_that_cannot_be_used_is_told_with_the_property(
    properties: dict[str, str], name: str, value: str, kind: type[Exception], remedy: str
) -> None:
    changed = {**properties, name: value}
    files = BucketFiles(changed["warehouse"], changed, HASTY)
    with pytest.raises(kind, match=remedy):
        check_files(files, SystemRandomness())


class _Careless(BaseHTTPRequestHandler):
    """An S3 that knows no conditions."""

    protocol_version = "HTTP/1.1"
    objects: ClassVar[dict[str, bytes]] = {}

    def do_PUT(self) -> None:
        self.objects[self.path] = self.rfile.read(int(self.headers["content-length"]))
        self._answer(200, b"")

    def do_GET(self) -> None:
        found = self.objects.get(self.path)
        self._answer(404 if found is None else 200, found or b"")

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        self.objects.pop(self.path, None)
        self._answer(204, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("etag", '"1"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_bucket_without_conditions_is_refused() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Careless)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        place = Durable(
            root="s3://events/lake",
            endpoint=f"http://127.0.0.1:{server.server_port}",
            access_key="key",
            secret_key="secret",
        )
        catalog = open_bare_catalog("lake", properties_of(place))
        with pytest.raises(NotSupported, match=r"s3://events/lake replaces files.*If-None-Match"):
            catalog.prove()
        assert _Careless.objects == {}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
