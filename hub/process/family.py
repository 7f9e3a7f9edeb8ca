"""A process and everything that it started, wherever that went: found by descent, and ended together.

A child that leaves the session, or whose parent ends, is still a descendant of the nearest process above it that adopts
orphans. Only Linux has such processes and lists children; elsewhere there are process groups alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
WATCH_S = 0.05
"""Seconds between two looks at a working process: what it can take in the meantime, beyond its limits."""
_SET_CHILD_SUBREAPER = 36
"""Of `prctl`, in linux/prctl.h."""
_ENDING_S = 2.0
"""Seconds in which killed processes are waited for: one in the middle of a disk access ends when that does."""
_LOOK_S = 0.001


def adopt_orphans() -> bool:
    """Make this process the parent of all that its descendants leave behind; False where the system knows no such way."""
    try:
        return ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0))) == 0
    except (OSError, AttributeError):
        return False


def children(pid: int) -> tuple[int, ...]:
    """Return the processes whose parent a process is; none where it ended, or where the system lists none."""
    try:
        tasks = list((PROC / str(pid) / "task").iterdir())
    except OSError:
        return ()
    return tuple(child for task in tasks for child in _of_thread(task))


def _of_thread(task: Path) -> tuple[int, ...]:
    try:
        return tuple(map(int, (task / "children").read_text().split()))
    except (OSError, ValueError):  # it has ended since it was listed, or this kernel lists no children
        return ()


def descendants(pid: int) -> Iterator[int]:
    """Return the children of a process, theirs, and so on."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def is_running(pid: int) -> bool:
    """Return True for a process that is there and has not ended."""
    return state_of(pid)[0] not in ("", "Z", "X")


def state_of(pid: int) -> tuple[str, str]:
    """Return the letter of a process's state ("Z": ended, and nobody waited for it) and its name; "" for neither."""
    try:
        start, _, end = (PROC / str(pid) / "stat").read_text().rpartition(")")
    except OSError:
        return "", ""
    return end.split()[0], start.partition("(")[2]


def end_family(pid: int) -> None:
    """End a process and everything it started. Nobody may have waited for it: then its number is not its own.

    It is stopped before its descendants are killed: so it starts none meanwhile, and adopts those whose parents end first.
    """
    _send(pid, signal.SIGSTOP)
    end_descendants(pid)
    end_session(pid)
    _send(pid, signal.SIGKILL)


def end_descendants(pid: int) -> None:
    """End everything that a process started, as far as it is still its descendant."""
    end_s = time.monotonic() + _ENDING_S
    while (found := [item for item in descendants(pid) if is_running(item)]) and time.monotonic() < end_s:
        for item in found:
            _send(item, signal.SIGKILL)
        time.sleep(_LOOK_S)


def end_session(pid: int) -> None:
    """End the process group that a process leads, be it there or not."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def memory_bytes(pid: int) -> int:
    """Return the bytes of memory that a process and its descendants hold for themselves; 0 where the system does not say.

    Only Linux says so without a library; elsewhere this bound is not watched.
    """
    return sum(map(_own_bytes, (pid, *descendants(pid))))


def _own_bytes(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    fields = (line.split() for line in lines if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:")))
    return sum(1024 * int(words[1]) for words in fields)
