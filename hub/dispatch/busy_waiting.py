"""Keeps OpenMP's idle threads from busy-waiting if a plan shares the cores with other thread pools.

libgomp, which comes with PyTorch, lets idle threads busy-wait for milliseconds before they sleep. That is good if OpenMP
also runs what follows; if not, it takes half of a two-core machine from another pool (a product in OpenVINO after one in
eager: 680 us, after the same without busy-waiting 440 us; `benchmarks/busy_waiting.py`). Its environment variables are read
once, before any plan exists. But it busy-waits a hundred times shorter as soon as it manages more threads than there are
cores. So a second team of threads that only sleeps restrains the first one; releasing it restores busy-waiting.
"""

from __future__ import annotations

import threading
import weakref

import torch

from hub.process.forks import freed_in_forks

_lock = freed_in_forks(threading.RLock())
"""Re-entrant lock, because a garbage collection, and with it a holder's finalizer, may run at any allocation."""
_holders = 0
_release: threading.Event | None = None
_READY_S = 10.0
SLEEPER = "hub-calm"
"""Name of the thread that owns a team of threads, and does nothing else."""


class Calm:
    """Holder that prevents busy-waiting in this process as long as any instance lives."""

    def __init__(self) -> None:
        _hold()
        # Not __del__, which may find the module's names gone when the process ends.
        weakref.finalize(self, _let_go).atexit = False


def _hold() -> None:
    global _holders, _release
    with _lock:
        _holders += 1
        if _release is not None or torch.get_num_threads() == 1:
            return
        release = _release = threading.Event()
    _start_sleeping_team(release)  # without the lock, which the new thread may need to release a holder


def _let_go() -> None:
    global _holders, _release
    with _lock:
        _holders -= 1
        if _holders == 0 and _release is not None:
            _release.set()
            _release = None


def _start_sleeping_team(release: threading.Event) -> None:
    """Start a thread that owns a team of OpenMP threads and sleeps until `release` is set; wait until it has the team."""
    is_ready = threading.Event()

    def own_a_team() -> None:
        torch.ones(1 << 20)  # large enough to be filled in parallel, which creates the team
        is_ready.set()
        release.wait()

    threading.Thread(target=own_a_team, name=SLEEPER, daemon=True).start()
    is_ready.wait(_READY_S)
