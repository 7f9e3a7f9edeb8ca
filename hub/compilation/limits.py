"""What a worker process may use before it is ended: memory and output, watched from outside while it works."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hub.report.numbers import megabytes

WATCH_S = 0.05
"""Seconds between two looks at a working process: what it can take in the meantime, beyond its limits."""
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds for one worker process and everything that it starts."""

    compile_s: float
    """Seconds that compiling, loading back and verifying one cluster may take."""
    memory_bytes: int
    """Bytes of memory of its own, without files that are mapped."""
    output_bytes: int
    """Bytes that it may print while it lives."""

    def excess(self, pid: int, log: Path) -> str:
        """Says which bound a process is beyond, or "" where it keeps to all of them."""
        if (taken := memory_bytes(pid)) > self.memory_bytes:
            return f"it took {megabytes(taken)} of memory, {megabytes(self.memory_bytes)} allowed (`memory_limit_gb`)"
        if (printed := _size(log)) > self.output_bytes:
            return f"it printed {megabytes(printed)}, {megabytes(self.output_bytes)} allowed (`output_limit_mb`)"
        return ""


def default_memory_bytes() -> int:
    """Gives three quarters of the machine's memory: what is left keeps the user's process and the system going."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4


def memory_bytes(pid: int) -> int:
    """Gives the bytes of memory that a process and its descendants hold for themselves; 0 where the system does not say.

    Only Linux says so without a library; elsewhere this bound is not watched.
    """
    return sum(map(_own_bytes, _family(pid)))


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        tasks = list((_PROC / str(pid) / "task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except (OSError, ValueError):  # it ended, or this kernel lists no children
        return
    for child in children:
        yield from _family(child)


def _own_bytes(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    fields = (line.split() for line in lines if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:")))
    return sum(1024 * int(words[1]) for words in fields)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
