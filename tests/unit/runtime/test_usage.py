"""Counters of the machine and of containers, these from files as Linux writes them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from pydanube.model.machine_counters import MachineCounters
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.control_groups import find_control_group
from pydanube.runtime.usage import (
    ContainerUsage,
    HostUsage,
    UsageSampler,
    is_container,
    system_usage,
)

HOST = MachineCounters(
    at_ms=0,
    cpu_seconds=1000.0,
    cpu_cores=8.0,
    memory_used_bytes=6_000,
    memory_limit_bytes=16_000,
    disk_bytes=70,
    network_bytes=90,
)

UNIFIED = {
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu io memory\n",
    "sys/fs/cgroup/cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n",
    "sys/fs/cgroup/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/memory.current": "5000\n",
    "sys/fs/cgroup/memory.stat": "anon 3000\nfile 2000\ninactive_file 1500\n",
    "sys/fs/cgroup/memory.max": "8000\n",
    "sys/fs/cgroup/io.stat": (
        "8:0 rbytes=100 wbytes=20 rios=1 wios=1 dbytes=7 dios=0\n259:0 rbytes=3 wbytes=4\n"
    ),
}

LEGACY = {
    "sys/fs/cgroup/cpuacct/cpuacct.usage": "2500000000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "5000\n",
    "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 1500\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "8000\n",
    "sys/fs/cgroup/blkio/blkio.throttle.io_service_bytes": (
        "8:0 Read 100\n8:0 Write 27\n8:0 Sync 5\n8:0 Total 127\nTotal 127\n"
    ),
}


class FixedUsage(UsageSampler):
    def sample(self) -> MachineCounters:
        return HOST


def written(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def sampled(root: Path) -> MachineCounters:
    group = find_control_group(root)
    assert group is not None
    return ContainerUsage(SystemClock(), group, FixedUsage()).sample()


@pytest.mark.parametrize("files", [UNIFIED, LEGACY], ids=["version 2", "version 1"])
def test_a_container_counts_its_own_and_knows_its_limits(
    tmp_path: Path, files: Mapping[str, str]
) -> None:
    counters = sampled(written(tmp_path, files))
    assert counters.cpu_seconds == 2.5
    assert counters.cpu_cores == 1.5
    assert counters.memory_used_bytes == 3_500
    assert counters.memory_limit_bytes == 8_000
    assert counters.disk_bytes == 127
    assert counters.network_bytes == HOST.network_bytes


@pytest.mark.parametrize(
    "files",
    [
        {
            **UNIFIED,
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/memory.max": "max\n",
        },
        {
            **LEGACY,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
        {
            **UNIFIED,
            "sys/fs/cgroup/cpu.max": "9900000 100000\n",
            "sys/fs/cgroup/memory.max": "99999\n",
        },
    ],
    ids=["version 2", "version 1", "more than there is"],
)
def test_a_container_without_limits_has_those_of_the_machine(
    tmp_path: Path, files: Mapping[str, str]
) -> None:
    counters = sampled(written(tmp_path, files))
    assert counters.cpu_cores == HOST.cpu_cores
    assert counters.memory_limit_bytes == HOST.memory_limit_bytes
    assert counters.cpu_seconds == 2.5
    assert counters.memory_used_bytes == 3_500


@pytest.mark.parametrize(
    "files",
    [
        {"sys/fs/cgroup/cgroup.controllers": "", "sys/fs/cgroup/io.stat": ""},
        {"sys/fs/cgroup/cgroup.controllers": "", "sys/fs/cgroup/cpu.stat": "usage_usec many\n"},
        {"sys/fs/cgroup/memory/memory.usage_in_bytes": "?\n"},
    ],
)
def test_what_a_group_does_not_tell_is_the_machines(
    tmp_path: Path, files: Mapping[str, str]
) -> None:
    counters = sampled(written(tmp_path, files))
    assert counters.cpu_seconds == HOST.cpu_seconds
    assert counters.memory_used_bytes == HOST.memory_used_bytes


def test_a_nested_group_is_found_by_its_path(tmp_path: Path) -> None:
    nested = {"proc/self/cgroup": "0::/pod/broker\n"}
    nested |= {
        "sys/fs/cgroup/pod/broker/cpu.stat": "usage_usec 9000000\n",
        "sys/fs/cgroup/pod/broker/memory.current": "1\n",
    }
    assert sampled(written(tmp_path, {**UNIFIED, **nested})).cpu_seconds == 9.0
    hosts_path = {"proc/self/cgroup": "0::/docker/0123\n"}
    assert sampled(written(tmp_path, {**UNIFIED, **hosts_path})).cpu_seconds == 2.5


def test_there_may_be_no_groups(tmp_path: Path) -> None:
    assert find_control_group(tmp_path) is None
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert isinstance(system_usage(SystemClock(), environment, tmp_path), HostUsage)


@pytest.mark.parametrize(
    ("environment", "files", "contained"),
    [
        ({}, {}, False),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {}, True),
        ({}, {".dockerenv": ""}, True),
        ({}, {"run/.containerenv": ""}, True),
        ({}, {"proc/1/cgroup": "12:memory:/kubepods/burstable/pod1\n"}, True),
        ({}, {"proc/1/cgroup": "0::/init.scope\n"}, False),
    ],
)
def test_containers_are_known_by_their_marks(
    tmp_path: Path, environment: dict[str, str], files: dict[str, str], contained: bool
) -> None:
    root = written(tmp_path, files)
    assert is_container(environment, root) == contained
    sampler = system_usage(SystemClock(), environment, written(root, UNIFIED))
    assert isinstance(sampler, ContainerUsage) == contained


def test_this_machine_can_be_looked_at() -> None:
    sampler = system_usage(SystemClock(), {})
    before, after = sampler.sample(), sampler.sample()
    assert before.at_ms <= after.at_ms
    assert 0 < before.cpu_seconds <= after.cpu_seconds
    assert before.cpu_cores > 0
    assert 0 < before.memory_used_bytes < before.memory_limit_bytes
    assert 0 <= before.disk_bytes <= after.disk_bytes
    assert 0 <= before.network_bytes <= after.network_bytes
