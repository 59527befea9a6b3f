from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from pydanube.storage.config import StorageConfig, WalAdvanced

EVERY_PUBLISHED_KEY = {
    "mode": "local",
    "local_wal_root": "./danube-data/wal",
    "metadata_prefix": "/danube",
    "local_retention": {"time_minutes": 2880, "size_mb": 20480, "check_interval_minutes": 5},
    "wal": {
        "rotation": {"max_bytes": 536870912, "max_hours": 24},
        "advanced": {
            "cache_capacity": 1024,
            "file_sync": {"interval_ms": 5000, "max_batch_bytes": 10485760},
        },
    },
    "durable": {
        "root": "s3://bucket/prefix",
        "backend": "s3",
        "region": "eu-west-1",
        "endpoint": "http://localhost:9000",
        "access_key": "a",
        "secret_key": "b",
        "session_token": "c",
        "anonymous": False,
        "virtual_host_style": False,
        "profile": "p",
        "role_arn": "r",
        "project": "g",
        "credentials_path": "/c",
        "credentials_json": "{}",
        "account_name": "n",
        "account_key": "k",
    },
    "write_buffer": {
        "backend": "valkey",
        "endpoints": ["redis://127.0.0.1:6379"],
        "wait_replicas": 1,
        "wait_timeout_ms": 100,
        "on_wait_timeout": "fail",
        "max_cached_closed_segments": 5,
    },
}


def convert(section: dict[str, Any]) -> StorageConfig:
    return msgspec.convert(section, StorageConfig)


def test_every_published_key_is_accepted() -> None:
    config = convert(EVERY_PUBLISHED_KEY)
    assert config.wal.rotation.max_hours == 24


def test_the_defaults_are_the_published_ones() -> None:
    config = convert({})
    assert config.mode == "local"
    assert config.local_wal_root == "./danube-data/wal"
    assert config.metadata_prefix == "/danube"
    assert config.wal.rotation.max_bytes == 536870912
    assert config.wal.rotation.max_hours is None
    assert config.local_retention.time_minutes == 2880
    assert config.local_retention.size_mb == 20480
    assert config.wal.advanced == WalAdvanced()
    assert config.tail_cache_bytes_max == 64 * 1024 * 1024
    assert config.notices() == []


@pytest.mark.parametrize(
    "section",
    [
        {"unknown": 1},
        {"mode": "memory"},
        {"wal": {"rotation": {"max_bytes": 1}}},
        {"unsynced_bytes_max": 0},
        {"durable": {"bucket": "b"}},
    ],
)
def test_what_makes_no_sense_is_refused(section: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        convert(section)


def test_settings_without_effect_are_answered() -> None:
    (notice,) = convert({"wal": {"advanced": {"cache_capacity": 7}}}).notices()
    assert "tail_cache_bytes_max" in notice
    (notice,) = convert({"wal": {"file_name": "x"}}).notices()
    assert "fixed names" in notice


def fields_of(kind: Any, path: str) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        yield f"{path}.{field.name}", hints[field.name]
        parts = [hints[field.name], *get_args(hints[field.name])]
        for part in parts:
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield from fields_of(part, f"{path}.{field.name}")


def test_every_setting_is_described() -> None:
    for path, hint in fields_of(StorageConfig, "storage"):
        inner = [hint, *get_args(hint)]
        is_section = any(
            isinstance(part, type) and issubclass(part, msgspec.Struct) for part in inner
        )
        if is_section:
            continue
        assert get_origin(hint) is Annotated, path
        assert any(isinstance(m, msgspec.Meta) and m.description for m in get_args(hint)), path
