"""Runs processes that plan and verify in the background on cores that the user's own threads leave free.

`nice` alone does not suffice, for two reasons (`benchmarks/behind.py`):

- Linux gives each session a group of its own (`sched_autogroup_enabled`), and shares the cores among groups first. A
  process in another session gets half of a contended core, whatever its niceness; the group has a niceness of its own.
- A thread that wakes up goes to an idle core, and a core that runs any ordinary process is not idle. So after each pause
  the user's threads wake up on one core, and wait for each other there until the system moves one: 60 ms for a call of
  2 ms. A core that runs only threads with the policy SCHED_IDLE counts as idle.

The change is permanent: the system lets only administrators raise a priority.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from functools import cache
from pathlib import Path

from hub.process.family import PROC

NICE = 7
"""Niceness that gives a sixth of a core that the user's threads want, too (Linux: 1.25 ** -7 to 1).

With 5 it would be a quarter, which slows a model that is called in a loop; with 10, a tenth, with which planning next to
one would take several times as long.
"""
_CGROUPS = Path("/sys/fs/cgroup")
_AGAIN_S, _TRIES = 0.12, 10
"""Seconds and tries: the system accepts one change of a group's niceness in 0.1 s, except from administrators."""


def step_behind(pid: int = 0) -> None:
    """Run a process, or this one, behind the user's threads, with its threads, its session, and what it starts.

    If the system does not support or allow that, nothing changes.
    """
    process = PROC / str(pid or os.getpid())
    is_shared = _groups_share(process)
    for thread in _threads(process):
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
        if is_shared:  # elsewhere, a core that is wanted would never run it
            with contextlib.suppress(OSError, AttributeError):
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    keep_session_behind(pid)


def _threads(process: Path) -> list[int]:
    """Return the threads of a process: on Linux, each has its own priority."""
    try:
        return [int(task.name) for task in (process / "task").iterdir()]
    except OSError:
        return [int(process.name)]


def place(pid: int, *, is_behind: bool) -> None:
    """Run a process that has just begun a session behind the user's threads, or at this process's priority."""
    (step_behind if is_behind else keep_session_behind)(pid)


def keep_session_behind(pid: int = 0) -> None:
    """Give the session that a process has just begun no more weight than the process itself."""
    with contextlib.suppress(OSError, AttributeError):
        if (nice := os.getpriority(os.PRIO_PROCESS, pid)) > 0:
            _set_group(PROC / str(pid or os.getpid()) / "autogroup", nice)


def _set_group(path: Path, nice: int) -> None:
    """Write a group's niceness. Raise OSError if there are no groups."""
    for _ in range(_TRIES):
        try:
            path.write_text(str(nice), encoding="ascii")
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            time.sleep(_AGAIN_S)
        else:
            return


@cache
def _has_groups() -> bool:
    """Return whether each session is a group of its own."""
    with contextlib.suppress(OSError):
        return (PROC / "sys/kernel/sched_autogroup_enabled").read_text().strip() == "1"
    return False


def _groups_share(process: Path) -> bool:
    """Return whether the cores are shared among sessions, which they are not inside a CPU control group.

    Containers have one. Only roots have a `release_agent` (version 1), and all but the root a `cpu.weight` (version 2).
    """
    if not _has_groups():
        return False
    try:
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return False
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers and any((folder / "cpu.weight").exists() for folder in _lineage(path)):
            return False
        is_first = path == "/" and (_CGROUPS / controllers / "release_agent").exists()
        if "cpu" in controllers.split(",") and not is_first:
            return False
    return True


def _lineage(path: str) -> list[Path]:
    """Return the folders of a control group and of its ancestors."""
    own = _CGROUPS / path.strip("/")
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(_CGROUPS)]
