"""Limits of a worker process, beyond which it is ended: time, memory and output, monitored from outside while it works."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hub.cache.artifacts import beyond, partial_bytes
from hub.process.cgroups import memory_limit_bytes
from hub.process.family import memory_bytes
from hub.report.numbers import megabytes

LOAD_LIMIT_S = 120.0
"""Seconds that starting a worker may take: importing PyTorch and reading the graph."""
ASK_LIMIT_S = 120.0
"""Maximum seconds that a backend may take to load and to report its support; less if `workers.compile_limit_s` is less."""
MIN_ASK_S = 10.0
"""Minimum of that limit: importing a library takes some seconds, however fast it compiles."""
ESTIMATE_LIMIT_S = 10.0
"""Seconds that a backend may take to predict one price."""
RUN_LIMIT_S = 120.0
"""Seconds that one request to run code may take, in addition to the time that the request asks for."""
ANSWER_LIMIT_S = 60.0
"""Seconds from the first byte of an answer to its last."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one worker process and everything that it starts."""

    compile_s: float
    """Seconds that compiling, loading back and verifying one cluster may take."""
    memory_bytes: int
    """Bytes of its own memory, without mapped files."""
    output_bytes: int
    """Bytes that it may print in its lifetime, that one of its answers may have, and that it may save excluding weights."""

    def excess(self, pid: int, log: Path) -> str:
        """Return which limit a process exceeds, or "" if it exceeds none."""
        if (taken := memory_bytes(pid)) > self.memory_bytes:
            allowed = megabytes(self.memory_bytes)
            return f"it took {megabytes(taken)} of memory, {allowed} allowed (`workers.memory_limit_gb`)"
        if (printed := _size(log)) > self.output_bytes:
            return f"it printed {megabytes(printed)}, {megabytes(self.output_bytes)} allowed (`workers.output_limit_mb`)"
        return ""


@dataclass(frozen=True, slots=True)
class Saving:
    """The folder to which a worker saves an executable, and the maximum size of that."""

    folder: Path
    most_bytes: int

    def excess(self, pid: int) -> str:
        """Return a message if what a worker is saving is too large, else ""."""
        return beyond(partial_bytes(self.folder, pid), self.most_bytes)


def default_memory_bytes() -> int:
    """Return three quarters of the machine's or container's memory. The rest is for the user's process and the system."""
    return int(min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), memory_limit_bytes()) * 3 / 4)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
