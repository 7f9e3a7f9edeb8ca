"""TVM's pool of threads: one for each thread that calls, whose size and waiting are the hub's to say."""

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
"""TVM's mode in which any core will do; which ones is left to the system, see `_ENVIRONMENT`."""
_ENVIRONMENT = {"TVM_BIND_THREADS": "0", "TVM_THREAD_POOL_SPIN_COUNT": "0"}
"""Threads bound to cores would collide with those of other backends, and ones that spin would take cores from them: TVM's
own wait 300,000 rounds. That number is read once a process, so it cannot depend on the plan."""
_SET_MOST = "_ZN3tvm7runtime9threading17SetMaxConcurrencyEi"
"""tvm::runtime::threading::SetMaxConcurrency(int): the most threads for the thread that calls it.

Each launch asks for it, when `TVM_NUM_THREADS` is put back: without either TVM (0.27) takes half of the CPUs, and runs
kernels in one thread where that is one.
"""
_TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
"""What each thread of a pool runs: its number, the group's, the caller's data; 0 for success."""
_NOTHING = _TASK(lambda *_: 0)
_LOCK = threading.Lock()
_ready = threading.local()


def use_threads(threads: int) -> None:
    """Have kernels that this thread calls run in so many threads. Costs nothing where they do already."""
    if getattr(_ready, "threads", 0) == threads:
        return
    import tvm_ffi

    most = max(threads, os.cpu_count() or 1)
    with _LOCK, seen_by_libraries({**_ENVIRONMENT, "TVM_NUM_THREADS": str(most)}):
        tvm_ffi.get_global_func("runtime.config_threadpool")(_BIG_CORES, threads)
        _function(_SET_MOST, None, ctypes.c_int)(most)  # behind the other, which forgets it
        _wake()
    _ready.threads = threads


def _wake() -> None:
    """Have every thread of the pool do nothing once: they read how long to spin when they begin, which may be late."""
    launch = _function("TVMBackendParallelLaunch", ctypes.c_int, _TASK, ctypes.c_void_p, ctypes.c_int)
    launch(_NOTHING, None, 0)


@cache
def _function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a function of TVM's library that is not among those which it registers."""
    spec = find_spec("tvm")
    folders = spec.submodule_search_locations if spec else None
    library = next(path for folder in folders or () for path in Path(folder, "lib").glob("libtvm_runtime.*"))
    found = ctypes.CDLL(str(library))[name]
    found.argtypes, found.restype = arguments, result
    return found
