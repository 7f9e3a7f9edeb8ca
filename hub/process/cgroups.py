"""Limits that a container sets for this process: cores and memory, by control groups of either version."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


@functools.cache
def quota_cores() -> float:
    """Return how many cores' time this process may use; infinite without a limit.

    Source: "cpu.max" in Linux's `cgroup-v2.rst`; `cpu.cfs_quota_us` and `cpu.cfs_period_us` in `sched-bwc.rst`.
    """
    found = [math.inf]
    for folder, is_new in _folders("cpu"):
        names = ("cpu.max",) if is_new else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        texts = [text for name in names for text in _words(folder / name)]
        match [int(text) for text in texts if text.lstrip("-").isdigit()]:
            case [quota, period] if quota > 0 and period > 0:
                found.append(quota / period)
            case _:
                pass  # "max", -1, or no such file
    return min(found)


@functools.cache
def memory_limit_bytes() -> float:
    """Return how many bytes of memory this process's group may take before one is killed; infinite without a limit."""
    found = [math.inf]
    for folder, is_new in _folders("memory"):
        texts = _words(folder / ("memory.max" if is_new else "memory.limit_in_bytes"))
        found += [float(text) for text in texts if text.isdigit()]
    return min(found)


def _folders(controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's groups, each with True for version 2: limits of outer groups count as well.

    Without a namespace of its own, a container sees the host's path here, and its own group at the root.
    """
    for line in _lines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _ROOT / controller if controllers else _ROOT
        inner = PurePosixPath("/", path)
        for group in (inner, *inner.parents):
            yield root / group.relative_to("/"), not controllers


def _lines() -> list[str]:
    try:
        return [line for line in _GROUPS.read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
