"""Calls of a running model, counted in a file, so that other processes can time between them.

Timing in the middle of the user's own calls measures which process gets the cores. So timings taken while the model runs
wait for a gap between two of its calls, and discard samples that a call interrupts. A model without gaps is not waited for
endlessly: the samples taken during calls are counted, and the plan mentions it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from hub.process.forks import freed_in_forks

COUNTS = "traffic"
"""Name of the file, next to the sample of the program that is planned."""
PATIENCE_S = 10.0
"""Seconds that all processes of one planning run wait for gaps; each sample that a call interrupts counts as well."""
_LOOK_S = 0.0005
_FORM = struct.Struct("=QQ")
"""Number of calls running now, and of calls ever begun."""
_SPENT = struct.Struct("=d")
"""Seconds of patience spent, after the counts. Processes add to it without a lock: a few lost seconds do no harm."""

T = TypeVar("T")


class Traffic:
    """The calls of models that run in eager while they are planned. Thread-safe."""

    def __init__(self) -> None:
        self._lock = freed_in_forks(threading.Lock())
        self._running = 0
        self._total = 0
        self._shared: mmap.mmap | None = None
        self._owner = os.getpid()

    def show(self, path: Path) -> None:
        """Write the counts to a new file from now on."""
        path.write_bytes(bytes(_FORM.size + _SPENT.size))
        with path.open("r+b") as file, self._lock:
            self._shared = mmap.mmap(file.fileno(), _FORM.size + _SPENT.size)
            self._owner = os.getpid()
            self._write()

    def hide(self) -> None:
        """Stop writing the counts."""
        with self._lock:
            self._shared = None

    def __enter__(self) -> None:
        """Begin a call."""
        with self._lock:
            self._running += 1
            self._total += 1
            self._write()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End a call."""
        with self._lock:
            self._running -= 1
            self._write()

    def _write(self) -> None:
        if self._shared is not None and os.getpid() == self._owner:
            _FORM.pack_into(self._shared, 0, self._running, self._total)


TRAFFIC = Traffic()


class Gaps:
    """Gaps between the calls that a file records; without a file, all the time."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._shared: mmap.mmap | None = None
        self.overlaps = 0
        """Samples that were taken during calls, because there were no gaps."""

    def watch(self, path: Path | None) -> None:
        """Read this file from now on; None watches nothing. An unreadable file records no calls."""
        self.path, self._shared = path, None
        self.overlaps = 0
        if path is not None:
            with contextlib.suppress(OSError, ValueError), path.open("r+b") as file:
                self._shared = mmap.mmap(file.fileno(), _FORM.size + _SPENT.size)

    def sample(self, take: Callable[[], T]) -> T:
        """Return the result of `take` in a gap; repeat it if a call interrupts, as long as patience lasts."""
        if self._shared is None:
            return take()
        while True:
            self._wait()
            before = self._counts()
            start = time.perf_counter()
            found = take()
            if before[0] == 0 and self._counts() == before:
                return found
            if self._spend(time.perf_counter() - start) <= 0:
                self.overlaps += 1
                return found

    def once(self, take: Callable[[], T]) -> tuple[T, bool]:
        """Return the result of `take`, for what cannot be repeated, and whether it was in a gap that no call ended."""
        if self._shared is None:
            return take(), True
        self._wait()
        before = self._counts()
        found = take()
        return found, before[0] == 0 and self._counts() == before

    def _wait(self) -> None:
        start, left_s = time.perf_counter(), self._spend(0.0)
        while self._counts()[0] and time.perf_counter() - start < left_s:
            time.sleep(_LOOK_S)
        self._spend(time.perf_counter() - start)

    def _spend(self, seconds: float) -> float:
        """Add to what was waited so far, and return the patience that is left."""
        assert self._shared is not None
        (spent_s,) = _SPENT.unpack_from(self._shared, _FORM.size)
        if seconds:
            _SPENT.pack_into(self._shared, _FORM.size, spent_s + seconds)
        return PATIENCE_S - spent_s - seconds

    def _counts(self) -> tuple[int, int]:
        assert self._shared is not None
        return _FORM.unpack_from(self._shared, 0)


GAPS = Gaps()
