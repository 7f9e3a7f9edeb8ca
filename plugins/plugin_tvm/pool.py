"""TVM's pool of threads: one for each thread that calls, whose size and waiting are the hub's to say."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

_BIG_CORES = 1
"""TVM's mode in which any core will do; which ones is left to the system, see `_ENVIRONMENT`."""
_ENVIRONMENT = {"TVM_BIND_THREADS": "0", "TVM_THREAD_POOL_SPIN_COUNT": "0"}
"""Threads bound to cores would collide with those of other backends, and ones that spin would take cores from them: TVM's
own wait 300,000 rounds. That number is read once a process, so it cannot depend on the plan."""
_LOCK = threading.Lock()
_ready = threading.local()


def use_threads(threads: int) -> None:
    """Has kernels that this thread calls run in so many threads. Costs nothing where they do already."""
    if getattr(_ready, "threads", 0) == threads:
        return
    import tvm_ffi

    with _LOCK, _environment({**_ENVIRONMENT, "TVM_NUM_THREADS": str(max(threads, os.cpu_count() or 1))}):
        tvm_ffi.get_global_func("runtime.config_threadpool")(_BIG_CORES, threads)
    _ready.threads = threads


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
