"""A trail in the worker's log: what the process was doing when it died or hung."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

_MARK = "hub-conformance at: "


def at(what: str) -> None:
    """Record what is done from now on. Never raise."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"\n{_MARK}{what}\n")
        sys.stderr.flush()


def last_place(log: Path) -> str:
    """Return what was recorded last, or nothing."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()
        return next((line.removeprefix(_MARK) for line in reversed(lines) if line.startswith(_MARK)), "")
    return ""
