"""Child processes that may crash or hang: how they ended, in words, and how to end them with all their children."""

from __future__ import annotations

import enum
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hub.process.environment import environment_now
from hub.process.family import WATCH_S, end_family, end_session, memory_bytes
from hub.process.priority import keep_session_behind
from hub.report.numbers import megabytes

_TAIL_BYTES = 4096
_told: dict[str, str] = {}


def tell_children(variable: str, text: str) -> None:
    """Set a variable for every process that the hub starts from now on, but not in this process's own environment."""
    _told[variable] = text


def environment_of_children() -> dict[str, str]:
    """Return the environment of processes that the hub starts."""
    return {**environment_now(), **_told}


def folder_of_children() -> str | None:
    """Return the root folder if the working directory was removed, else None: a new process then gets the same one.

    MKL finds its libraries by the working directory, and ends a process without one.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        return os.sep
    return None


class Outcome(enum.Enum):
    """Kinds of failure of a child process."""

    FAILED = enum.auto()
    """By itself, or by another process's signal."""
    OUT_OF_TIME = enum.auto()
    OUT_OF_MEMORY = enum.auto()
    PRINTED_TOO_MUCH = enum.auto()


@dataclass(frozen=True, slots=True)
class Failed:
    """Reason why a child process failed."""

    outcome: Outcome
    reason: str
    """Reason in words: "killed by SIGSEGV", "no answer within 10 s"."""

    @property
    def is_beyond_limit(self) -> bool:
        """Return whether it was ended for exceeding a limit."""
        return self.outcome in (Outcome.OUT_OF_TIME, Outcome.OUT_OF_MEMORY)

    def __str__(self) -> str:
        return self.reason


def run_child(
    command: Sequence[str],
    timeout_s: float,
    path: Sequence[str] | None = None,
    most_bytes: int | None = None,
    most_output: int | None = None,
) -> Failed | None:
    """Run a command to its end and return what went wrong, None for exit status 0. Raises OSError.

    `path` is its module search path, if it is a Python. If it uses more than `most_bytes` of memory, or prints more than
    `most_output` bytes, it is ended.

    Its output goes to a file, not to a pipe: a grandchild that outlives a killed child would keep a pipe open, and the
    reader waiting.
    """
    with tempfile.TemporaryFile() as log:
        variables = environment_of_children()
        if path is not None:
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder_of_children(),
            start_new_session=True,
            env=variables,
        )
        try:
            keep_session_behind(child.pid)
            if (failed := _watched(child, timeout_s, most_bytes, log, most_output)) is not None:
                return failed
        finally:
            kill_group(child)
        if (failed := _printed_too_much(log, most_output)) is not None:
            return failed
        if child.returncode == 0:
            return None
        return Failed(Outcome.FAILED, f"{exit_text(child.returncode)}{last_line(log)}")


def _printed_too_much(log: IO[bytes], most_output: int | None) -> Failed | None:
    printed = os.fstat(log.fileno()).st_size
    if most_output is None or printed <= most_output:
        return None
    return Failed(Outcome.PRINTED_TOO_MUCH, f"it printed {megabytes(printed)}, {megabytes(most_output)} allowed")


def _watched(
    child: subprocess.Popen[Any], timeout_s: float, most_bytes: int | None, log: IO[bytes], most_output: int | None
) -> Failed | None:
    """Wait for a child to end; return why waiting any longer is pointless, or None if it ended."""
    end_s = time.monotonic() + timeout_s
    while True:
        left_s = max(0.0, end_s - time.monotonic())
        try:
            child.wait(left_s if most_bytes is None else min(left_s, WATCH_S))
            return None
        except subprocess.TimeoutExpired:
            if most_bytes is not None and (taken := memory_bytes(child.pid)) > most_bytes:
                reason = f"it took {megabytes(taken)} of memory, {megabytes(most_bytes)} allowed"
                return Failed(Outcome.OUT_OF_MEMORY, reason)
            if (failed := _printed_too_much(log, most_output)) is not None:
                return failed
            if time.monotonic() >= end_s:
                return Failed(Outcome.OUT_OF_TIME, f"no answer within {timeout_s:g} s")


def kill_group(child: subprocess.Popen[Any]) -> None:
    """End a child that was started in its own session, and everything that it started."""
    if child.returncode is None:
        end_family(child.pid)
    end_session(child.pid)
    child.wait()


FROM_OUTSIDE = (-signal.SIGINT, -signal.SIGKILL, -signal.SIGTERM)
"""Exit statuses of processes that were ended from outside: by a user, or by a system out of memory."""


def exit_text(returncode: int) -> str:
    """Return how a child process ended: "killed by SIGSEGV" or "exit status 1"."""
    if returncode >= 0:
        return f"exit status {returncode}"
    names = {item.value: item.name for item in signal.Signals}
    return f"killed by {names.get(-returncode, f'signal {-returncode}')}"


def last_line(log: IO[bytes]) -> str:
    """Return ": " and the last line of a child's output, or "" if it printed nothing."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _TAIL_BYTES))
    lines = log.read().decode(errors="replace").strip().splitlines()
    return f": {lines[-1][:300]}" if lines else ""
