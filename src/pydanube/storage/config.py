"""The `storage:` section of the broker's configuration."""

from typing import Annotated, Literal

from msgspec import Meta, Struct
from typing_extensions import override

MIB = 1024 * 1024

StorageMode = Literal["local", "shared_fs", "object_store"]


class LocalRetention(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long journal files stay once all their messages are in segments."""

    time_minutes: Annotated[
        int, Meta(ge=1, description="Delete exported journal files older than this.")
    ] = 2880
    size_mb: Annotated[
        int,
        Meta(
            ge=1,
            description="Delete the oldest exported journal files while the journal is larger. "
            "When it is larger and nothing may be deleted, because the segment store takes "
            "nothing, publishes are refused. Two journal files always fit.",
        ),
    ] = 20480
    check_interval_minutes: Annotated[
        int,
        Meta(ge=1, description="How often journal files and expired segments are looked at."),
    ] = 5


class Segments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a topic's messages become a segment. PyDanube's own section."""

    seal_bytes: Annotated[
        int, Meta(ge=64 * 1024, description="Journaled bytes that make a segment.")
    ] = 64 * MIB
    seal_seconds: Annotated[
        int,
        Meta(
            ge=1,
            description="A message that has waited this long becomes part of a segment, "
            "however few there are.",
        ),
    ] = 300
    read_cache_bytes_max: Annotated[
        int,
        Meta(ge=0, description="Memory for messages read from segments, shared by all readers."),
    ] = 64 * MIB
    shutdown_seconds: Annotated[
        int,
        Meta(
            ge=0,
            description="How long a stop in shared_fs and object_store mode waits until all "
            "messages are in segments.",
        ),
    ] = 20


class Rotation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the journal begins a new file."""

    max_bytes: Annotated[
        int, Meta(ge=64 * 1024, description="Begin a new journal file at this size.")
    ] = 512 * MIB
    max_hours: Annotated[
        int | None, Meta(description="Begin a new journal file at this age; none: size alone.")
    ] = None


class FileSync(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read and without effect: every group of publishes is synced before it is acknowledged."""

    interval_ms: Annotated[
        int, Meta(ge=1, description="Without effect: publishes are synced at once.")
    ] = 5000
    max_batch_bytes: Annotated[
        int, Meta(ge=1, description="Without effect: publishes are synced at once.")
    ] = 10 * MIB


class WalAdvanced(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of Danube's log per topic, read and without effect."""

    cache_capacity: Annotated[
        int,
        Meta(
            ge=1,
            description="Without effect: the cache is bounded by tail_cache_bytes_max.",
        ),
    ] = 1024
    file_sync: FileSync = FileSync()


class Wal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The journal."""

    rotation: Rotation = Rotation()
    advanced: WalAdvanced = WalAdvanced()
    file_name: Annotated[
        str | None, Meta(description="Without effect: journal files have fixed names.")
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
    endpoint: Annotated[str | None, Meta(description="Endpoint URL.")] = None
    access_key: Annotated[str | None, Meta(description="S3: access key id.")] = None
    secret_key: Annotated[str | None, Meta(description="S3: secret access key.")] = None
    session_token: Annotated[str | None, Meta(description="S3: session token.")] = None
    anonymous: Annotated[bool, Meta(description="Send no credentials.")] = False
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

    @override
    def __repr__(self) -> str:
        return f"Durable(root={self.root!r}, …)"  # Secrets must never reach a log.


class WriteBuffer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An external write buffer. This version refuses the section."""

    backend: Annotated[str, Meta(description="Kind of buffer.")] = "valkey"
    endpoints: Annotated[str | list[str] | None, Meta(description="Addresses of the buffer.")] = (
        None
    )
    wait_replicas: Annotated[int, Meta(description="Replicas that must have a message.")] = 1
    wait_timeout_ms: Annotated[int, Meta(description="How long to wait for them.")] = 100
    on_wait_timeout: Annotated[str, Meta(description="What to do then.")] = "fail"
    max_cached_closed_segments: Annotated[int, Meta(description="Segments to keep there.")] = 5


class StorageConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The journal and the segments.

    Older names of its keys are translated where the file is read, in `broker.config`.
    """

    mode: Annotated[
        StorageMode,
        Meta(
            description="Where segments go: `local` beside the journal, `shared_fs` and "
            "`object_store` to storage.durable."
        ),
    ] = "local"
    local_wal_root: Annotated[str, Meta(min_length=1, description="Directory of the journal.")] = (
        "./danube-data/wal"
    )
    metadata_prefix: Annotated[
        str,
        Meta(
            pattern="^(/[A-Za-z0-9_.-]+)+$",
            description="Prefix of the catalogue of segments in the metadata.",
        ),
    ] = "/danube"
    local_retention: LocalRetention = LocalRetention()
    segments: Segments = Segments()
    wal: Wal = Wal()
    durable: Durable | None = None
    write_buffer: WriteBuffer | None = None
    tail_cache_bytes_max: Annotated[
        int,
        Meta(ge=0, description="Memory for recent messages of all topics, to serve live readers."),
    ] = 64 * MIB
    journal_cache_bytes_max: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="How much of the journal's end the system's file cache is to hold; none: "
            "as much as the system likes.",
        ),
    ] = 256 * MIB
    journal_direct_bytes_min: Annotated[
        Annotated[int, Meta(ge=64 * 1024)] | None,
        Meta(
            description="Batches of so many bytes and more are written to the journal past the "
            "system's file cache, where the file system can do that; none: no batches are.",
        ),
    ] = MIB
    unsynced_bytes_max: Annotated[
        int,
        Meta(ge=MIB, description="Publishes are refused while this much waits for the disk."),
    ] = 64 * MIB
    sync_seconds_max: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="A disk that takes longer for a write and its sync counts as stuck: a "
            "broker of a cluster gives its topics up, one alone says so in its health; none: wait "
            "for ever.",
        ),
    ] = 5.0

    def notices(self) -> list[str]:
        """Return what to tell the operator about settings that have no effect here."""
        found = []
        if self.wal.advanced != WalAdvanced():
            found.append(
                "storage.wal.advanced has no effect: publishes are synced before they are "
                "acknowledged, and the cache is bounded by storage.tail_cache_bytes_max"
            )
        if self.wal.file_name is not None:
            found.append("storage.wal.file_name has no effect: journal files have fixed names")
        if self.durable is not None and self.durable.project is not None:
            found.append("storage.durable.project has no effect: a bucket's name is enough")
        return found
