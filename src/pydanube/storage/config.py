"""The `storage:` section of the broker's configuration."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

MIB = 1024 * 1024

StorageMode = Literal["local", "shared_fs", "object_store"]


class LocalRetention(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long journal files stay once all their messages are in segments."""

    time_minutes: Annotated[
        int, Meta(ge=1, description="Delete exported journal files older than this.")
    ] = 2880
    size_mb: Annotated[
        int, Meta(ge=1, description="Delete the oldest exported journal files beyond this size.")
    ] = 20480
    check_interval_minutes: Annotated[
        int, Meta(ge=1, description="How often exported journal files are looked at.")
    ] = 5


class Rotation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the journal begins a new file."""

    max_bytes: Annotated[
        int, Meta(ge=64 * 1024, description="Begin a new journal file at this size.")
    ] = 512 * MIB
    max_hours: Annotated[
        int | None, Meta(description="Begin a new journal file at this age; none: size alone.")
    ] = None


class FileSync(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Accepted for compatibility: every group of publishes is synced before it is acknowledged."""

    interval_ms: Annotated[
        int, Meta(ge=1, description="Accepted, without effect: publishes are synced at once.")
    ] = 5000
    max_batch_bytes: Annotated[
        int, Meta(ge=1, description="Accepted, without effect: publishes are synced at once.")
    ] = 10 * MIB


class WalAdvanced(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the reference's per-topic log."""

    cache_capacity: Annotated[
        int,
        Meta(
            ge=1,
            description="Accepted, without effect: the cache is bounded by tail_cache_bytes_max.",
        ),
    ] = 1024
    file_sync: FileSync = FileSync()


class Wal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The journal."""

    rotation: Rotation = Rotation()
    advanced: WalAdvanced = WalAdvanced()
    cache_capacity: Annotated[
        int | None, Meta(description="Former place of wal.advanced.cache_capacity.")
    ] = None
    file_sync: Annotated[
        FileSync | None, Meta(description="Former place of wal.advanced.file_sync.")
    ] = None
    retention: Annotated[
        LocalRetention | None, Meta(description="Former place of storage.local_retention.")
    ] = None
    dir: Annotated[str | None, Meta(description="Former name of storage.local_wal_root.")] = None
    file_name: Annotated[
        str | None, Meta(description="Accepted, without effect: journal files have fixed names.")
    ] = None


class Durable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where segments go in the modes shared_fs and object_store."""

    root: Annotated[
        str | None, Meta(description="Directory, or bucket URL such as s3://bucket/prefix.")
    ] = None
    backend: Annotated[
        Literal["s3", "gcs", "azblob"] | None, Meta(description="Kind of object store.")
    ] = None
    region: Annotated[str | None, Meta(description="S3: region.")] = None
    endpoint: Annotated[str | None, Meta(description="S3, Azure: endpoint URL.")] = None
    access_key: Annotated[str | None, Meta(description="S3: access key id.")] = None
    secret_key: Annotated[str | None, Meta(description="S3: secret access key.")] = None
    session_token: Annotated[str | None, Meta(description="S3: session token.")] = None
    anonymous: Annotated[bool, Meta(description="S3: send no credentials.")] = False
    virtual_host_style: Annotated[
        bool, Meta(description="S3: bucket in the host name, not in the path.")
    ] = False
    profile: Annotated[str | None, Meta(description="S3: profile in the credentials file.")] = None
    role_arn: Annotated[str | None, Meta(description="S3: role to assume.")] = None
    project: Annotated[str | None, Meta(description="GCS: project.")] = None
    credentials_path: Annotated[str | None, Meta(description="GCS: file with credentials.")] = None
    credentials_json: Annotated[str | None, Meta(description="GCS: credentials as JSON.")] = None
    account_name: Annotated[str | None, Meta(description="Azure: account.")] = None
    account_key: Annotated[str | None, Meta(description="Azure: key of the account.")] = None


class WriteBuffer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Accepted for compatibility: journal mirrors take the place of an external write buffer."""

    backend: Annotated[str, Meta(description="Accepted, without effect.")] = "valkey"
    endpoints: Annotated[str | list[str] | None, Meta(description="Accepted, without effect.")] = (
        None
    )
    wait_replicas: Annotated[int, Meta(description="Accepted, without effect.")] = 1
    wait_timeout_ms: Annotated[int, Meta(description="Accepted, without effect.")] = 100
    on_wait_timeout: Annotated[str, Meta(description="Accepted, without effect.")] = "fail"
    max_cached_closed_segments: Annotated[int, Meta(description="Accepted, without effect.")] = 5


class StorageConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `storage:` section. Built by `msgspec.convert`, which checks types and limits."""

    mode: Annotated[
        StorageMode, Meta(description="Where segments go; this version has local only.")
    ] = "local"
    local_wal_root: Annotated[
        str | None, Meta(description="Directory of the journal; ./danube-data/wal if not given.")
    ] = None
    root: Annotated[str | None, Meta(description="Another name of local_wal_root.")] = None
    cache_root: Annotated[str | None, Meta(description="Another name of local_wal_root.")] = None
    metadata_prefix: Annotated[
        str | None, Meta(description="Prefix of storage keys in the metadata; /danube.")
    ] = None
    metadata_root: Annotated[str | None, Meta(description="Another name of metadata_prefix.")] = (
        None
    )
    local_retention: LocalRetention = LocalRetention()
    wal: Wal = Wal()
    durable: Durable | None = None
    object_store: Annotated[Durable | None, Meta(description="Former name of storage.durable.")] = (
        None
    )
    write_buffer: WriteBuffer | None = None
    tail_cache_bytes_max: Annotated[
        int,
        Meta(ge=0, description="Memory for recent messages of all topics, to serve live readers."),
    ] = 64 * MIB
    unsynced_bytes_max: Annotated[
        int,
        Meta(ge=MIB, description="Publishes are refused while this much waits for the disk."),
    ] = 64 * MIB

    def __post_init__(self) -> None:
        self._one_journal_root()
        self._one_metadata_prefix()

    @property
    def journal_root(self) -> str | None:
        """The journal's directory, by whichever name it was given."""
        return self.local_wal_root or self.root or self.cache_root or self.wal.dir

    @property
    def key_prefix(self) -> str:
        """The prefix of storage keys, by whichever name it was given."""
        return self.metadata_prefix or self.metadata_root or "/danube"

    def notices(self) -> list[str]:
        """Return what to tell the operator about settings that have no effect here."""
        found = []
        if self.write_buffer is not None:
            found.append(
                "storage.write_buffer has no effect: an acknowledged message is synced to the "
                "broker's own journal, and journal mirrors replace the external write buffer"
            )
        if self.wal.advanced != WalAdvanced() or self.wal.file_sync is not None:
            found.append(
                "storage.wal.advanced has no effect: publishes are synced before they are "
                "acknowledged, and the cache is bounded by storage.tail_cache_bytes_max"
            )
        if self.wal.file_name is not None:
            found.append("storage.wal.file_name has no effect: journal files have fixed names")
        return found

    def _one_journal_root(self) -> None:
        given = {
            name: value
            for name, value in (
                ("storage.local_wal_root", self.local_wal_root),
                ("storage.root", self.root),
                ("storage.cache_root", self.cache_root),
                ("storage.wal.dir", self.wal.dir),
            )
            if value is not None
        }
        if len(set(given.values())) > 1:
            raise ValueError(f"{' and '.join(given)} name different directories; give only one")

    def _one_metadata_prefix(self) -> None:
        if self.metadata_prefix and self.metadata_root not in (None, self.metadata_prefix):
            raise ValueError(
                "storage.metadata_prefix and storage.metadata_root differ; give only one"
            )
