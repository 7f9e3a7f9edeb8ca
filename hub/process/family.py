"""A process and all its descendants: found through their parents, and ended together.

A child that leaves the session, or whose parent ends, is still a descendant of the nearest ancestor that adopts orphans.
Only Linux has such processes and lists children; elsewhere there are only process groups.
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
"""Seconds between two checks of a working process, which may exceed its limits in between."""
_SET_CHILD_SUBREAPER = 36
"""Constant of `prctl`, from linux/prctl.h."""
_ENDING_S = 2.0
"""Seconds to wait for killed processes: one in the middle of a disk access ends only after it."""
_LOOK_S = 0.001


def adopt_orphans() -> bool:
    """Make this process the parent of its descendants' orphans; return False if the system does not support that.

    Let it notice the end of each: a process inherits the signals that the thread which started it blocks, and ignored ones.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        return ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0))) == 0
    except (OSError, AttributeError):
        return False


def children(pid: int) -> tuple[int, ...]:
    """Return a process's children; none if it has ended, or if the system does not list them."""
    try:
        tasks = list((PROC / str(pid) / "task").iterdir())
    except OSError:
        return ()
    return tuple(child for task in tasks for child in _of_thread(task))


def _of_thread(task: Path) -> tuple[int, ...]:
    try:
        return tuple(map(int, (task / "children").read_text().split()))
    except (OSError, ValueError):  # it has ended since it was listed, or this kernel does not list children
        return ()


def descendants(pid: int) -> Iterator[int]:
    """Yield the children of a process, their children, and so on."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def is_running(pid: int) -> bool:
    """Return True for a process that exists and has not ended."""
    return state_of(pid)[0] not in ("", "Z", "X")


def state_of(pid: int) -> tuple[str, str]:
    """Return the letter of a process's state ("Z": ended but not waited for) and its name; "" if unknown."""
    try:
        start, _, end = (PROC / str(pid) / "stat").read_text().rpartition(")")
    except OSError:
        return "", ""
    return end.split()[0], start.partition("(")[2]


def end_family(pid: int) -> None:
    """End a process and all its descendants. It must not have been waited for: its id might be another process's.

    It is stopped before its descendants are killed, so that it starts no more, and adopts those whose parents end first.
    """
    _send(pid, signal.SIGSTOP)
    end_descendants(pid)
    end_session(pid)
    _send(pid, signal.SIGKILL)


def end_descendants(pid: int) -> None:
    """End all of a process's current descendants."""
    end_s = time.monotonic() + _ENDING_S
    while (found := [item for item in descendants(pid) if is_running(item)]) and time.monotonic() < end_s:
        for item in found:
            _send(item, signal.SIGKILL)
        time.sleep(_LOOK_S)


def end_session(pid: int) -> None:
    """End the process group that a process leads, whether or not that process still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def memory_bytes(pid: int) -> int:
    """Return the bytes of private memory of a process and its descendants; 0 if the system does not report it.

    Only Linux reports it without a library; elsewhere this limit is not enforced.
    """
    return sum(map(_own_bytes, (pid, *descendants(pid))))


def _own_bytes(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    fields = (line.split() for line in lines if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:")))
    return sum(1024 * int(words[1]) for words in fields)
