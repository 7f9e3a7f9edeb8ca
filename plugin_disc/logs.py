"""What compilers said: collected while they run, and after a failure kept where people can read it."""

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
"""Characters of a log that a message repeats."""


@dataclass
class Log:
    """What was said so far."""

    lines: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Add lines; nothing for text of blanks."""
        self.lines += text.rstrip().splitlines()

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(f"{line}\n" for line in self.lines)


@contextmanager
def logged(folder: str = "") -> Generator[Log]:
    """Return a log. A CompileError from within leaves with the log's end and the place where it is kept, in `folder`."""
    log = Log()
    try:
        yield log
    except CompileError as error:
        error.message = f"{error.message}; {where_kept(log.text, folder, 'disc-')}"
        raise


def where_kept(text: str, folder: str, prefix: str) -> str:
    """Keep a log and say where, and how it ends. A full disk must not hide the failure that it is about: it is told."""
    try:
        place = str(_kept(text, Path(folder or tempfile.gettempdir()), prefix))
    except OSError as error:
        place = f"not kept ({error})"
    return f"the log is {place} and ends with:\n{text.strip()[-TAIL:]}"


def _kept(text: str, folder: Path, prefix: str) -> Path:
    """Write a log that outlives this process, whole or not at all. Raises OSError."""
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
