"""Keeps OpenMP's idle threads from spinning where a plan shares the cores with other thread pools.

libgomp, which PyTorch brings, lets idle threads spin for milliseconds before they sleep: good for what comes next if that
is OpenMP's too, and half of a two-core machine taken from a neighbour's pool if it is not (a product in OpenVINO after one
in eager: 680 us, after the same with spinning held back 440 us; `benchmarks/spinning.py`). Its environment variables are
read once, before any plan exists. But it spins a hundred times shorter as soon as it manages more threads than there are
cores; so a second team of threads that sleeps for good holds the first one back, and letting it go brings spinning back.
"""

from __future__ import annotations

import threading
import weakref

import torch

from hub.process.forks import freed_in_forks

_lock = freed_in_forks(threading.RLock())
"""Re-entrant, because garbage may be collected, and a holder with it, wherever something is allocated."""
_holders = 0
_release: threading.Event | None = None
_READY_S = 10.0
SLEEPER = "hub-calm"
"""Name of the thread that owns a team of threads, and does nothing else."""


class Calm:
    """Holds spinning back in this process for as long as any such value lives."""

    def __init__(self) -> None:
        _hold()
        # Not __del__, which at the end of the process may find the module's names gone.
        weakref.finalize(self, _let_go).atexit = False


def _hold() -> None:
    global _holders, _release
    with _lock:
        _holders += 1
        if _release is not None or torch.get_num_threads() == 1:
            return
        release = _release = threading.Event()
    _start_sleeping_team(release)  # without the lock, which the new thread may need to let a holder go


def _let_go() -> None:
    global _holders, _release
    with _lock:
        _holders -= 1
        if _holders == 0 and _release is not None:
            _release.set()
            _release = None


def _start_sleeping_team(release: threading.Event) -> None:
    """Start a thread that owns a team of OpenMP threads and sleeps until `release` is set; waits until it has the team."""
    is_ready = threading.Event()

    def own_a_team() -> None:
        torch.ones(1 << 20)  # large enough to be filled in parallel, which makes the team
        is_ready.set()
        release.wait()

    threading.Thread(target=own_a_team, name=SLEEPER, daemon=True).start()
    is_ready.wait(_READY_S)
