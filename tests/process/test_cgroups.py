"""A container's limits of cores and memory are known, whichever version of control groups it uses."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hub.cache import keys
from hub.process import cgroups
from hub.workers.limits import default_memory_bytes

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that stands for the system's."""
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "_GROUPS", tmp_path / "groups")
    for limit in (cgroups.quota_cores, cgroups.memory_limit_bytes):
        monkeypatch.setattr(cgroups, limit.__name__, limit.__wrapped__)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_version_2_the_tightest_of_nested_groups_counts(root: Path) -> None:
    """A pod's limit binds its containers."""
    write(root / "groups", "0::/pod/one")
    write(root / "cgroup/pod/one/cpu.max", "max 100000")
    write(root / "cgroup/pod/cpu.max", "150000 100000")
    write(root / "cgroup/pod/one/memory.max", str(4 * GIB))
    write(root / "cgroup/pod/memory.max", "max")
    assert cgroups.quota_cores() == 1.5
    assert cgroups.memory_limit_bytes() == 4 * GIB


def test_version_1_a_path_of_the_host_leads_to_the_root(root: Path) -> None:
    """Without a namespace, the path is not there in the container."""
    write(root / "groups", "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/")
    write(root / "cgroup/cpu/cpu.cfs_quota_us", "200000")
    write(root / "cgroup/cpu/cpu.cfs_period_us", "100000")
    write(root / "cgroup/memory/memory.limit_in_bytes", str(2 * GIB))
    assert cgroups.quota_cores() == 2.0
    assert cgroups.memory_limit_bytes() == 2 * GIB


@pytest.mark.parametrize("text", ["0::/", "0::", "0::relative", "", "nonsense", "1:cpu:/\n4:memory:/"])
def test_without_limits_they_are_infinite(root: Path, text: str) -> None:
    """Most machines set none."""
    write(root / "groups", text)
    write(root / "cgroup/cpu/cpu.cfs_quota_us", "-1")
    write(root / "cgroup/cpu/cpu.cfs_period_us", "100000")
    assert cgroups.quota_cores() == cgroups.memory_limit_bytes() == math.inf


def test_workers_keep_to_them(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More compilers than cores would be throttled, and more memory than there is ends them by SIGKILL."""
    write(root / "groups", "0::/")
    write(root / "cgroup/cpu.max", "50000 100000")
    write(root / "cgroup/memory.max", str(GIB))
    monkeypatch.setattr(keys, "quota_cores", cgroups.quota_cores)
    monkeypatch.setattr("hub.workers.limits.memory_limit_bytes", cgroups.memory_limit_bytes)
    assert keys.available_cores() == 1
    assert default_memory_bytes() == GIB * 3 // 4
