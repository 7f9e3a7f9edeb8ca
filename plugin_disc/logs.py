"""Logs of compilers: collected while they run, and kept in a readable file after a failure."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hub.plugin import CompileError

TAIL = 2000
"""Number of a log's last characters that an error message quotes."""


@dataclass
class Log:
    """The lines logged so far."""

    lines: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Add the lines of a text; blank text adds none."""
        self.lines += text.rstrip().splitlines()

    @property
    def text(self) -> str:
        """All lines as one text."""
        return "".join(f"{line}\n" for line in self.lines)


@contextmanager
def logged(folder: str = "") -> Generator[Log]:
    """Yield a log. A CompileError from within gets the log's end, and the path in `folder` where the log is kept."""
    log = Log()
    try:
        yield log
    except CompileError as error:
        error.message = f"{error.message}; {where_kept(log.text, folder, 'disc-')}"
        raise


def where_kept(text: str, folder: str, prefix: str) -> str:
    """Keep a log; return its path and its end. If it cannot be kept, return why: that must not hide the logged failure."""
    try:
        place = str(_kept(text, Path(folder or tempfile.gettempdir()), prefix))
    except OSError as error:
        place = f"not kept ({error})"
    return f"the log is {place} and ends with:\n{text.strip()[-TAIL:]}"


def _kept(text: str, folder: Path, prefix: str) -> Path:
    """Write a log that outlives this process, completely or not at all. Raise OSError if that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=".log", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
    return Path(name)
