import pytest

from pydanube.errors import InvalidRequest
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.storage.config import Durable, StorageConfig
from pydanube.storage.segments.directory_store import DirectoryStore
from pydanube.storage.segments.location import open_store, store_service
from pydanube.storage.segments.opendal_store import OpenDalStore


def test_in_local_mode_segments_lie_beside_the_journal() -> None:
    store = open_store(StorageConfig(local_wal_root="/data/wal/"), SimulatedDisk())
    assert isinstance(store, DirectoryStore)
    assert store.description == "the segment directory /data/segments"
    assert store.provider == "local"


@pytest.mark.parametrize("root", ["/mnt/share", "file:///mnt/share"])
def test_a_shared_directory_is_a_path_or_a_file_url(root: str) -> None:
    config = StorageConfig(mode="shared_fs", durable=Durable(root=root))
    store = open_store(config, SimulatedDisk())
    assert store.description == "the segment directory /mnt/share"
    assert store.provider == "shared_fs"


@pytest.mark.parametrize("durable", [None, Durable(), Durable(root="s3://bucket")])
def test_a_shared_directory_must_be_one(durable: Durable | None) -> None:
    with pytest.raises(InvalidRequest, match=r"storage\.durable\.root"):
        open_store(StorageConfig(mode="shared_fs", durable=durable), SimulatedDisk())


async def test_an_object_store_is_not_touched_before_its_first_use() -> None:
    durable = Durable(root="s3://bucket/some/prefix/", region="eu-north-1", access_key="a")
    store = open_store(StorageConfig(mode="object_store", durable=durable), SimulatedDisk())
    assert isinstance(store, OpenDalStore)
    assert store.provider == "s3"
    await store.close()


def test_every_setting_of_s3_takes_effect() -> None:
    service = store_service(
        Durable(
            root="s3://bucket/some/prefix",
            region="eu-north-1",
            endpoint="http://127.0.0.1:1",
            access_key="a",
            secret_key="b",
            session_token="c",
            virtual_host_style=True,
            profile="d",
            role_arn="e",
        )
    )
    assert service.scheme == "s3"
    assert service.options == {
        "bucket": "bucket",
        "root": "/some/prefix",
        "region": "eu-north-1",
        "endpoint": "http://127.0.0.1:1",
        "access_key_id": "a",
        "secret_access_key": "b",
        "session_token": "c",
        "enable_virtual_host_style": "true",
        "profile": "d",
        "role_arn": "e",
        "disable_ec2_metadata": "true",
        "checksum_algorithm": "crc32c",
    }
    anonymous = store_service(Durable(root="s3://bucket", endpoint="http://h", anonymous=True))
    assert anonymous.options["skip_signature"] == "true"
    assert anonymous.options["region"] == "us-east-1"
    assert anonymous.options["root"] == "/"


def test_every_setting_of_google_and_azure_takes_effect() -> None:
    google = store_service(Durable(root="gcs://bucket/x", credentials_json="{}"))
    assert google.scheme == "gcs"
    assert google.options["credential"] == "e30="
    by_path = store_service(Durable(root="gs://bucket", credentials_path="/key.json"))
    assert by_path.options["credential_path"] == "/key.json"
    azure = store_service(Durable(root="az://box/x", account_name="acme", account_key="k"))
    assert azure.scheme == "azblob"
    assert azure.options == {
        "container": "box",
        "root": "/x",
        "endpoint": "https://acme.blob.core.windows.net",
        "account_name": "acme",
        "account_key": "k",
    }


def test_a_root_without_scheme_is_a_bucket() -> None:
    service = store_service(Durable(root="bucket", backend="gcs"))
    assert (service.scheme, service.options["bucket"]) == ("gcs", "bucket")


@pytest.mark.parametrize(
    ("durable", "setting"),
    [
        (Durable(), "root"),
        (Durable(root="bucket"), "backend"),
        (Durable(root="bucket/prefix", backend="s3"), "root"),
        (Durable(root="s3://", backend="s3"), "root"),
        (Durable(root="ftp://bucket"), "backend"),
        (Durable(root="s3://bucket", backend="gcs"), "backend"),
        (Durable(root="azblob://box"), "account_name"),
    ],
)
def test_settings_that_do_not_say_where_are_refused_by_name(durable, setting: str) -> None:
    with pytest.raises(InvalidRequest, match=setting):
        store_service(durable)
