"""TVM's thread pool: one for each calling thread. The hub sets its size and disables busy-waiting."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hub.plugin import seen_by_libraries

_BIG_CORES = 1
"""TVM's mode for any cores; the system selects them, see `_ENVIRONMENT`."""
_ENVIRONMENT = {"TVM_BIND_THREADS": "0", "TVM_THREAD_POOL_SPIN_COUNT": "0"}
"""Variables that disable binding and busy-waiting: threads bound to cores would collide with those of other backends, and
busy-waiting ones would take cores from them (TVM's default is 300,000 rounds). TVM reads the number of rounds once per
process, so it cannot depend on the plan."""
_SET_MOST = "_ZN3tvm7runtime9threading17SetMaxConcurrencyEi"
"""tvm::runtime::threading::SetMaxConcurrency(int): the largest number of threads for the calling thread.

Each launch reads it, after `TVM_NUM_THREADS` has been restored: without either, TVM (0.27) uses half of the CPUs, and runs
kernels in one thread if that is one.
"""
_TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
"""Function that each thread of a pool runs: arguments are its number, the group's and the caller's data; 0 is success."""
_NOTHING = _TASK(lambda *_: 0)
_LOCK = threading.Lock()
_ready = threading.local()


def use_threads(threads: int) -> None:
    """Make kernels that this thread calls run in the given number of threads. Costs nothing if they already do."""
    if getattr(_ready, "threads", 0) == threads:
        return
    import tvm_ffi

    most = max(threads, os.cpu_count() or 1)
    with _LOCK, seen_by_libraries({**_ENVIRONMENT, "TVM_NUM_THREADS": str(most)}):
        tvm_ffi.get_global_func("runtime.config_threadpool")(_BIG_CORES, threads)
        _function(_SET_MOST, None, ctypes.c_int)(most)  # after config_threadpool, which resets it
        _wake()
    _ready.threads = threads


def _wake() -> None:
    """Run an empty task in every thread of the pool: threads read their busy-wait count when they start, maybe late."""
    launch = _function("TVMBackendParallelLaunch", ctypes.c_int, _TASK, ctypes.c_void_p, ctypes.c_int)
    launch(_NOTHING, None, 0)


@cache
def _function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a function of TVM's library that TVM does not register."""
    spec = find_spec("tvm")
    folders = spec.submodule_search_locations if spec else None
    library = next(path for folder in folders or () for path in Path(folder, "lib").glob("libtvm_runtime.*"))
    found = ctypes.CDLL(str(library))[name]
    found.argtypes, found.restype = arguments, result
    return found
