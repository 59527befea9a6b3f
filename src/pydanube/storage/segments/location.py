"""Which store the configuration means: `storage.mode` and `storage.durable`, key by key."""

import posixpath
from base64 import b64encode
from collections.abc import Mapping
from os.path import abspath
from typing import assert_never

from pydanube.errors import InvalidRequest
from pydanube.runtime.files import Files
from pydanube.storage.config import Durable, StorageConfig
from pydanube.storage.errors import StoreProblem
from pydanube.storage.segments.directory_store import DirectoryStore
from pydanube.storage.segments.object_store import ObjectStore
from pydanube.storage.segments.opendal_store import OpenDalStore, StoreService

_BACKENDS = {"s3": "s3", "gcs": "gcs", "gs": "gcs", "azblob": "azblob", "az": "azblob"}
_DEFAULT_REGION = "us-east-1"
_NETWORK = "check storage.durable.endpoint and the network"
_LATER = "it will be tried again"


def open_store(config: StorageConfig, files: Files) -> ObjectStore:
    """Return the store that segments go to; nothing is read or written yet.

    Raises InvalidRequest that names the setting when the settings do not say where.
    """
    match config.mode:
        case "local":
            root = local_segments_root(config.local_wal_root)
            return DirectoryStore(files, root, provider="local", setting="storage.local_wal_root")
        case "shared_fs":
            return DirectoryStore(
                files, _shared_root(config), provider="shared_fs", setting="storage.durable.root"
            )
        case "object_store":
            return OpenDalStore(store_service(config.durable or Durable()))
        case _:
            assert_never(config.mode)


def directory_root(config: StorageConfig) -> str | None:
    """Return the directory of the segments; None if they go to an object store.

    Raises InvalidRequest, as `open_store` does.
    """
    match config.mode:
        case "local":
            return local_segments_root(config.local_wal_root)
        case "shared_fs":
            return _shared_root(config)
        case "object_store":
            store_service(config.durable or Durable())
            return None
        case _:
            assert_never(config.mode)


def store_url(config: StorageConfig) -> str:
    """Return where segments lie, for readers that open them without the broker; no secrets.

    A relative directory is one of this process: nobody else could find it by that name.
    """
    root = directory_root(config)
    if root is None:
        assert config.durable is not None
        return config.durable.root or ""
    return f"file://{abspath(root)}"


def local_segments_root(journal_root: str) -> str:
    """Return the directory beside the journal's that holds the segments in local mode."""
    return posixpath.join(posixpath.dirname(posixpath.normpath(journal_root)), "segments")


def _shared_root(config: StorageConfig) -> str:
    root = (config.durable.root if config.durable is not None else None) or ""
    path = root.removeprefix("file://")
    if not path or "://" in path:
        raise InvalidRequest(
            f"storage.mode shared_fs needs a directory as storage.durable.root, not {root!r}"
        )
    return path


def store_service(durable: Durable) -> StoreService:
    """Return the service that `storage.durable` describes."""
    if not durable.root:
        raise InvalidRequest(
            "storage.mode object_store needs storage.durable.root, such as s3://bucket/prefix"
        )
    scheme, bucket, prefix = _split_root(durable.root)
    backend = durable.backend or _BACKENDS.get(scheme)
    if backend is None:
        raise InvalidRequest(
            f"storage.durable.root {durable.root!r} does not tell the kind of store; begin it with "
            "s3://, gcs:// or azblob://, or set storage.durable.backend"
        )
    if scheme and _BACKENDS.get(scheme) != backend:
        raise InvalidRequest(
            f"storage.durable.root begins with {scheme}://, storage.durable.backend says {backend}"
        )
    match backend:
        case "s3":
            options, credentials = _s3(durable, bucket), "access_key, secret_key, session_token, "
            credentials += "profile or role_arn"
        case "gcs":
            options, credentials = _gcs(durable, bucket), "credentials_path or credentials_json"
        case _:
            options, credentials = _azblob(durable, bucket), "account_name or account_key"
    given = {name: value for name, value in options.items() if value is not None}
    return StoreService(
        scheme=backend,
        options={**given, "root": f"/{prefix}"},
        description=_describe(backend, bucket, durable.endpoint),
        remedies={
            StoreProblem.CREDENTIALS: f"check storage.durable.{credentials}, and that they may "
            "read, write, list and delete in the bucket",
            StoreProblem.PLACE: f"create the bucket {bucket}, or correct storage.durable.root",
            StoreProblem.SETTINGS: "check the settings of storage.durable",
            StoreProblem.UNREACHABLE: _NETWORK,
            StoreProblem.TIMEOUT: _NETWORK,
            StoreProblem.THROTTLED: _LATER,
            StoreProblem.OTHER: _LATER,
        },
    )


def _split_root(root: str) -> tuple[str, str, str]:
    """Return scheme, bucket and prefix; a root without scheme is a bucket without prefix."""
    scheme, separator, rest = root.partition("://")
    if not separator:
        scheme, rest = "", root
    bucket, _, prefix = rest.partition("/")
    if not bucket or (not scheme and prefix):
        raise InvalidRequest(
            f"storage.durable.root {root!r} must be a bucket, or a URL such as s3://bucket/prefix"
        )
    return scheme, bucket, prefix.strip("/")


def _s3(durable: Durable, bucket: str) -> Mapping[str, str | None]:
    return {
        "bucket": bucket,
        "endpoint": durable.endpoint,
        "region": durable.region or (_DEFAULT_REGION if durable.endpoint else None),
        "access_key_id": durable.access_key,
        "secret_access_key": durable.secret_key,
        "session_token": durable.session_token,
        "profile": durable.profile,
        "role_arn": durable.role_arn,
        "skip_signature": _flag(durable.anonymous),
        "enable_virtual_host_style": _flag(durable.virtual_host_style),
        # Asking a machine of the cloud for credentials takes seconds where there is none.
        "disable_ec2_metadata": _flag(durable.access_key is not None or durable.anonymous),
        # The service compares what it received, and refuses what was changed on the way.
        "checksum_algorithm": "crc32c",
    }


def _gcs(durable: Durable, bucket: str) -> Mapping[str, str | None]:
    credentials = durable.credentials_json
    return {
        "bucket": bucket,
        "endpoint": durable.endpoint,
        "credential_path": durable.credentials_path,
        "credential": b64encode(credentials.encode()).decode() if credentials else None,
        "skip_signature": _flag(durable.anonymous),
        "disable_vm_metadata": _flag(
            durable.anonymous or bool(credentials) or durable.credentials_path is not None
        ),
    }


def _azblob(durable: Durable, container: str) -> Mapping[str, str | None]:
    endpoint = durable.endpoint
    if endpoint is None and durable.account_name:
        endpoint = f"https://{durable.account_name}.blob.core.windows.net"
    if endpoint is None:
        raise InvalidRequest(
            "storage.durable of azblob needs account_name, or endpoint with the account in it"
        )
    return {
        "container": container,
        "endpoint": endpoint,
        "account_name": durable.account_name,
        "account_key": durable.account_key,
        "skip_signature": _flag(durable.anonymous),
    }


def _flag(value: bool) -> str | None:
    return "true" if value else None


def _describe(backend: str, bucket: str, endpoint: str | None) -> str:
    place = f"{backend} container {bucket}" if backend == "azblob" else f"{backend} bucket {bucket}"
    return f"{place} at {endpoint}" if endpoint else place
