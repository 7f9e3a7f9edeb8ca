"""Which moments a running model leaves alone: its calls are counted in a file that the processes beside it read.

Timing in the middle of the user's own calls measures who gets the cores. So what is timed beside a running model waits for
a gap between two of its calls, and forgets what a call fell into. A model that leaves no gaps is not waited for endlessly:
what was timed beside it is counted, and the plan says so.
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
"""Name of the file, beside the sample of what is planned."""
PATIENCE_S = 6.0
"""Seconds that one process waits for gaps, in all; each sample that a call falls into counts as well."""
_LOOK_S = 0.0005
_FORM = struct.Struct("=QQ")
"""Calls that run now, and calls that ever began."""

T = TypeVar("T")


class Traffic:
    """The calls of models that run in eager while they are planned. Any thread may enter."""

    def __init__(self) -> None:
        self._lock = freed_in_forks(threading.Lock())
        self._running = 0
        self._total = 0
        self._shared: mmap.mmap | None = None
        self._owner = os.getpid()

    def show(self, path: Path) -> None:
        """Write the counts to a new file from now on."""
        path.write_bytes(bytes(_FORM.size))
        with path.open("r+b") as file, self._lock:
            self._shared = mmap.mmap(file.fileno(), _FORM.size)
            self._owner = os.getpid()
            self._write()

    def hide(self) -> None:
        """Write no more counts."""
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
    """The moments in which nobody else calls, as far as a file says; all of them where there is none."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._shared: mmap.mmap | None = None
        self._patience_s = 0.0
        self.beside = 0
        """Samples that were taken beside calls, because there were no gaps."""

    def watch(self, path: Path | None) -> None:
        """Look at this file from now on; None watches nothing. One that cannot be read says nothing."""
        self.path, self._shared = path, None
        self._patience_s, self.beside = PATIENCE_S, 0
        if path is not None:
            with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
                self._shared = mmap.mmap(file.fileno(), _FORM.size, access=mmap.ACCESS_READ)

    def sample(self, take: Callable[[], T]) -> T:
        """Return what `take` gives in a gap: it is taken again where a call falls into it, as long as patience lasts."""
        if self._shared is None:
            return take()
        while True:
            self._wait()
            before = self._counts()
            start = time.perf_counter()
            found = take()
            if before[0] == 0 and self._counts() == before:
                return found
            self._patience_s -= time.perf_counter() - start
            if self._patience_s <= 0:
                self.beside += 1
                return found

    def _wait(self) -> None:
        start = time.perf_counter()
        while self._counts()[0] and time.perf_counter() - start < self._patience_s:
            time.sleep(_LOOK_S)
        self._patience_s -= time.perf_counter() - start

    def _counts(self) -> tuple[int, int]:
        assert self._shared is not None
        return _FORM.unpack_from(self._shared, 0)


GAPS = Gaps()
