"""TVM's pool of threads: one for each thread that calls, whose size and waiting are the hub's to say."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

_BIG_CORES = 1
"""TVM's mode in which any core will do; which ones is left to the system, see `_BIND`."""
_BIND = "TVM_BIND_THREADS"
"""Threads bound to cores would collide with those of other backends."""
_ROUNDS = "TVM_THREAD_POOL_SPIN_COUNT"
"""Rounds that an idle thread spins, 300,000 unless told, which takes cores from other backends. TVM reads the number once a
process, when the first pool is made; the other variables whenever one is made or resized."""
SPINNING = 30_000
"""Rounds where threads may spin: enough to get from one kernel to the next (MobileNetV2: 5.7 ms a call, 7.4 without any and
7.9 with TVM's own number; 2 cores, 2026-11)."""
_LOCK = threading.Lock()
_ready = threading.local()


def use_threads(threads: int, *, spin: bool) -> None:
    """Has kernels that this thread calls run in so many threads, which may spin. Costs nothing where they do already."""
    if getattr(_ready, "pool", None) == (threads, spin):
        return
    import tvm_ffi

    most = str(max(threads, os.cpu_count() or 1))
    with _LOCK, _environment({_BIND: "0", _ROUNDS: str(SPINNING if spin else 0), "TVM_NUM_THREADS": most}):
        tvm_ffi.get_global_func("runtime.config_threadpool")(_BIG_CORES, threads)
    _ready.pool = (threads, spin)


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
