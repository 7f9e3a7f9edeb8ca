"""IREE's devices: one per process for each target and number of threads. IREE is imported with the first one."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

_LOCK = threading.Lock()
_WORKERS = "--task_topology_group_count"
"""Flag from which a task system reads its number of threads when its driver is created; the API has no option for it."""


def device(target: str, threads: int) -> Any:
    """Return the device that runs programs for a target; created on first use, and kept because its threads never end.

    One thread needs no pool: programs then run in the calling thread. IREE's exception propagates if there is no such
    device.
    """
    with _LOCK:
        return _made(target, threads if target == "cpu" else 1)


@cache
def instance() -> Any:
    """Return the virtual machine that all programs of this process share."""
    from iree import runtime

    # Otherwise the Python binding prints a page when the process ends: it reports everything still alive as a leak.
    native: Any = runtime._binding  # pyright: ignore[reportPrivateUsage] - there is no public API
    native.disable_leak_checker()
    return runtime.VmInstance()


@cache
def _made(target: str, threads: int) -> Any:
    if target != "cpu":
        return _driver(target).create_default_device()
    if threads == 1:
        return _driver("local-sync").create_default_device()
    from iree import runtime

    # Idle workers sleep: --task_worker_spin_us is 0 unless a user sets it in IREE_PY_RUNTIME_FLAGS.
    flags: Any = runtime.flags
    flags.parse_flags(f"{_WORKERS}={threads}")
    try:
        return _driver("local-task").create_default_device()
    finally:
        flags.parse_flags(f"{_WORKERS}=0")


def _driver(name: str) -> Any:
    """Return a new driver: `iree.runtime.get_driver` caches one by name, which users of IREE would also get."""
    from iree import runtime

    native: Any = runtime._binding  # pyright: ignore[reportPrivateUsage] - the public form caches
    return native.create_hal_driver(name)
