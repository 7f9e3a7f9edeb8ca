"""Time in which work was possible: without the time for which processes behind the user's threads waited for a core."""

from __future__ import annotations

import contextlib
import os
import threading
import time

from hub.process.family import PROC, descendants, state_of

LOOK_S = 0.25
"""Seconds between two checks for waiting processes."""
MIN_SHARE = 0.05
"""Least share of all time that counts, so that a budget ends however busy the machine is."""


class Worked:
    """Seconds for which a process worked, or waited for something other than a core."""

    def __init__(self, pid: int) -> None:
        self._pid, self.seconds = pid, 0.0
        self._now_s, self._cpu_s = time.monotonic(), _cpu_s(pid)

    def tick(self) -> float:
        """Return the seconds since the last check for which it waited for a core."""
        now_s, cpu_s = time.monotonic(), _cpu_s(self._pid)
        passed_s, worked_s = now_s - self._now_s, cpu_s - self._cpu_s
        self._now_s, self._cpu_s = now_s, cpu_s
        waited_s = max(0.0, passed_s - worked_s) if state_of(self._pid)[0] == "R" else 0.0
        self.seconds += passed_s - waited_s
        return waited_s


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process in seconds; 0 if the system does not report it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


class _Family:
    """Waiting times of this process and those that it started, once watched."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self._members: dict[int, Worked] = {}

    def watch(self) -> None:
        """Check repeatedly, as long as this process lives."""
        threading.Thread(target=self._look, name="hub-waiting", daemon=True).start()

    def _look(self) -> None:
        own = os.getpid()
        while True:
            start_s = time.monotonic()
            time.sleep(LOOK_S)
            members = {pid: self._members.get(pid) or Worked(pid) for pid in (own, *descendants(own))}
            self._members = members
            waited = [seconds for member in members.values() if (seconds := member.tick())]
            passed_s = time.monotonic() - start_s
            if waited:  # several wait in turn for one core: each of them progresses by that much
                self.waited_s += min(sum(waited) / len(waited), (1 - MIN_SHARE) * passed_s)


_family = _Family()


def leave_out_waiting() -> None:
    """Make `now` exclude, from here on, seconds for which processes that this one started waited for a core."""
    _family.watch()


def now() -> float:
    """Return `time.monotonic()` without the excluded seconds."""
    return time.monotonic() - _family.waited_s
