"""TVM's pool of threads: one for each thread that calls, whose size and waiting are the hub's to say."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_BIG_CORES = 1
"""TVM's mode in which any core will do; which ones is left to the system, see `_ENVIRONMENT`."""
_ENVIRONMENT = {"TVM_BIND_THREADS": "0", "TVM_THREAD_POOL_SPIN_COUNT": "0"}
"""Threads bound to cores would collide with those of other backends, and ones that spin would take cores from them: TVM's
own wait 300,000 rounds. That number is read once a process, so it cannot depend on the plan."""
_SET_MOST = "_ZN3tvm7runtime9threading17SetMaxConcurrencyEi"
"""tvm::runtime::threading::SetMaxConcurrency(int)"""
_LOCK = threading.Lock()
_ready = threading.local()


def use_threads(threads: int) -> None:
    """Has kernels that this thread calls run in so many threads. Costs nothing where they do already."""
    if getattr(_ready, "threads", 0) == threads:
        return
    import tvm_ffi

    most = max(threads, os.cpu_count() or 1)
    with _LOCK, _environment({**_ENVIRONMENT, "TVM_NUM_THREADS": str(most)}):
        tvm_ffi.get_global_func("runtime.config_threadpool")(_BIG_CORES, threads)
    _set_most()(most)  # behind the other, which forgets it
    _ready.threads = threads


@cache
def _set_most() -> Callable[[int], None]:
    """Gives TVM's function that says, for the thread that calls it, how many threads there may be at most.

    Each launch asks again, when `TVM_NUM_THREADS` is put back: without either TVM takes half of the CPUs, and runs kernels
    in one thread where that is one. It is not among the functions that TVM registers (0.27).
    """
    spec = find_spec("tvm")
    folders = spec.submodule_search_locations if spec else None
    library = next(path for folder in folders or () for path in Path(folder, "lib").glob("libtvm_runtime.*"))
    found = ctypes.CDLL(str(library))[_SET_MOST]
    found.argtypes, found.restype = [ctypes.c_int], None
    return found


@contextmanager
def _environment(values: dict[str, str]) -> Generator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
