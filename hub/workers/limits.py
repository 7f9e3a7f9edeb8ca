"""What a worker process may use before it is ended: memory and output, watched from outside while it works."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hub.cache.artifacts import beyond, partial_bytes
from hub.process.family import memory_bytes
from hub.report.numbers import megabytes


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds for one worker process and everything that it starts."""

    compile_s: float
    """Seconds that compiling, loading back and verifying one cluster may take."""
    memory_bytes: int
    """Bytes of memory of its own, without files that are mapped."""
    output_bytes: int
    """Bytes that it may print while it lives, that one answer of it may have, and that it may save beside weights."""

    def excess(self, pid: int, log: Path) -> str:
        """Return which bound a process is beyond, or "" where it keeps to all of them."""
        if (taken := memory_bytes(pid)) > self.memory_bytes:
            return f"it took {megabytes(taken)} of memory, {megabytes(self.memory_bytes)} allowed (`memory_limit_gb`)"
        if (printed := _size(log)) > self.output_bytes:
            return f"it printed {megabytes(printed)}, {megabytes(self.output_bytes)} allowed (`output_limit_mb`)"
        return ""


@dataclass(frozen=True, slots=True)
class Saving:
    """Where a worker saves an executable, and how large that may be."""

    folder: Path
    most_bytes: int

    def excess(self, pid: int) -> str:
        """Return that what a worker is saving is too large, or "" where it is not."""
        return beyond(partial_bytes(self.folder, pid), self.most_bytes)


def default_memory_bytes() -> int:
    """Return three quarters of the machine's memory: what is left keeps the user's process and the system going."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
