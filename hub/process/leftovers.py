"""Leftovers of a plugin in its process: threads, open files, processes. None of them can be undone from outside."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

from hub.process.family import children, state_of
from hub.report.numbers import count

MANY_LEFT = 4
"""Threads or open files that neither compiling nor first calls may leave behind; fewer may be a library's own."""
_SELF = Path("/proc/self")


def leftovers() -> Counter[str]:
    """Count Python's threads, open files and child processes of this process; only Linux lists the last two."""
    try:
        files = sum(1 for _ in (_SELF / "fd").iterdir())
        processes = sum(map(_is_left, children(os.getpid())))
    except OSError:
        files = processes = 0
    return Counter({"thread": threading.active_count(), "open file": files, "process": processes})


def _is_left(child: int) -> bool:
    """Return True for a child that runs, and for an ended fork of this process that was not waited for.

    Other ended programs may be orphans of a tool's, which this process adopted, and which are never waited for.
    """
    state, name = state_of(child)
    return state not in ("", "Z", "X") or (state == "Z" and name == state_of(os.getpid())[1])


def more(before: Counter[str], at_least: int = 1) -> str:
    """Return in words what there is more of now: "8 threads, 64 open files"; "" for nothing.

    Fewer threads or files than `at_least` are not reported; a process always is.
    """
    added = leftovers() - before
    return ", ".join(_counted(number, kind) for kind, number in added.items() if number >= at_least or kind == "process")


def _counted(number: int, kind: str) -> str:
    return f"{number} processes" if kind == "process" and number > 1 else count(number, kind)
