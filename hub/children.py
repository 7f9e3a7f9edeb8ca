"""Child processes that may crash or hang: how they end, in words, and how to end them with all their own children."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

from hub import environment
from hub.compilation.family import end_family, end_session
from hub.compilation.limits import WATCH_S, memory_bytes
from hub.report.numbers import megabytes

_TAIL_BYTES = 4096
_OUT_OF_TIME = "no answer within "
_OUT_OF_MEMORY = "it took "


_told: dict[str, str] = {}


def tell_children(variable: str, text: str) -> None:
    """Has every process that the hub starts from now on find a variable that this process's own environment lacks."""
    _told[variable] = text


def environment_of_children() -> dict[str, str]:
    """Gives the environment of processes that the hub starts."""
    return {**environment.snapshot(), **_told}


def run_child(
    command: Sequence[str],
    timeout_s: float,
    path: Sequence[str] | None = None,
    most_bytes: int | None = None,
    most_output: int | None = None,
) -> str:
    """Runs a command to its end and gives what went wrong in words, or "" for exit status 0. Raises OSError.

    `path` is where it looks for modules, if it is a Python. With more than `most_bytes` of memory, or `most_output` bytes
    printed, it is ended.

    What it prints goes to a file, not to a pipe: a grandchild that outlives a killed child would keep a pipe open, and the
    reader waiting.
    """
    with tempfile.TemporaryFile() as log:
        variables = environment_of_children()
        if path is not None:
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=variables
        )
        try:
            if reason := _watched(child, timeout_s, most_bytes, log, most_output):
                return reason
        finally:
            kill_group(child)
        if reason := _printed_too_much(log, most_output):
            return reason
        return "" if child.returncode == 0 else f"{exit_text(child.returncode)}{last_line(log)}"


def is_out_of_time(failure: str) -> bool:
    """True where what `run_child` gave says that a child was ended for taking too long."""
    return failure.startswith(_OUT_OF_TIME)


def is_out_of_memory(failure: str) -> bool:
    """True where it says that a child was ended for the memory that it took."""
    return failure.startswith(_OUT_OF_MEMORY)


def _printed_too_much(log: IO[bytes], most_output: int | None) -> str:
    printed = os.fstat(log.fileno()).st_size
    if most_output is None or printed <= most_output:
        return ""
    return f"it printed {megabytes(printed)}, {megabytes(most_output)} allowed"


def _watched(
    child: subprocess.Popen[Any], timeout_s: float, most_bytes: int | None, log: IO[bytes], most_output: int | None
) -> str:
    """Waits for a child to end; gives why it is not worth waiting any longer, or "" where it ended."""
    end_s = time.monotonic() + timeout_s
    while True:
        left_s = max(0.0, end_s - time.monotonic())
        try:
            child.wait(left_s if most_bytes is None else min(left_s, WATCH_S))
            return ""
        except subprocess.TimeoutExpired:
            if most_bytes is not None and (taken := memory_bytes(child.pid)) > most_bytes:
                return f"{_OUT_OF_MEMORY}{megabytes(taken)} of memory, {megabytes(most_bytes)} allowed"
            if reason := _printed_too_much(log, most_output):
                return reason
            if time.monotonic() >= end_s:
                return f"{_OUT_OF_TIME}{timeout_s:g} s"


def kill_group(child: subprocess.Popen[Any]) -> None:
    """Ends a child that was started in a session of its own, and everything that it started."""
    if child.returncode is None:
        end_family(child.pid)
    end_session(child.pid)
    child.wait()


def exit_text(returncode: int) -> str:
    """Says how a child process ended: "killed by SIGSEGV" or "exit status 1"."""
    if returncode >= 0:
        return f"exit status {returncode}"
    names = {item.value: item.name for item in signal.Signals}
    return f"killed by {names.get(-returncode, f'signal {-returncode}')}"


def last_line(log: IO[bytes]) -> str:
    """Gives ": " and the last line of what a child printed, or nothing where it printed nothing."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _TAIL_BYTES))
    lines = log.read().decode(errors="replace").strip().splitlines()
    return f": {lines[-1][:300]}" if lines else ""
