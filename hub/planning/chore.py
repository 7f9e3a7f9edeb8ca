"""Background work next to the user's calls: a thread with at most one worker process, which ends with this process."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from abc import ABC, abstractmethod
from typing import ClassVar

from hub.process.family import end_family
from hub.process.forks import freed_in_forks
from hub.workers.channel import Worker

LOOK_S = 0.1
"""Polling interval of waits, in seconds."""

_all: weakref.WeakSet[Chore] = weakref.WeakSet()


class Chore(ABC):
    """Background work, one of its kind at a time. In a fork of this process there is nothing left to do."""

    name: ClassVar[str]
    """Name of the thread."""
    turn: ClassVar[threading.Lock]
    """Lock held by the chore of its kind that is working."""
    join_s: ClassVar[float]
    """Seconds that the end of this process waits for the thread."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._is_stopped = False
        self._lock = freed_in_forks(threading.RLock())  # `stop` may be called by a finalizer while this thread holds it
        self._done = threading.Event()
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        _all.add(self)

    @abstractmethod
    def work(self) -> None:
        """Do the work; stop early if `_is_stopped` is set, since the result is no longer wanted."""

    @abstractmethod
    def clean_up(self) -> None:
        """Release all resources, whether or not the work began."""

    def when_over(self) -> None:  # noqa: B027 - few have anything to do then
        """Do what has to wait for the end of the chore."""

    @property
    def is_pending(self) -> bool:
        """Return True until the chore is over."""
        return os.getpid() == self._owner and not self._done.is_set()

    @property
    def has_ended(self) -> bool:
        """Return True once the chore is over; never in a fork of this process that was made before."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the chore is over; return False if the timeout expires first."""
        return not self.is_pending or threading.current_thread() is self._thread or self._done.wait(timeout_s)

    def stop(self) -> None:
        """End the worker, without waiting for it."""
        if os.getpid() != self._owner:
            return
        self._is_stopped = True
        with self._lock:
            if self._worker is not None:
                end_family(self._worker.pid)

    def join(self) -> None:
        """Wait briefly for the thread that `stop` has ended."""
        if os.getpid() == self._owner and self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(self.join_s)

    def _run(self) -> None:
        try:
            while not self.turn.acquire(timeout=LOOK_S):
                if self._is_stopped:
                    return
            try:
                self.work()
            finally:
                self.turn.release()
        finally:
            self._end_worker()
            self.clean_up()
            self._done.set()
            self.when_over()

    def _end_worker(self) -> None:
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()


def chores() -> list[Chore]:
    """Return all chores that are still referenced, finished ones included."""
    return list(_all)


@atexit.register
def _stop_all() -> None:
    found = chores()
    for chore in found:
        chore.stop()
    for chore in found:
        chore.join()
