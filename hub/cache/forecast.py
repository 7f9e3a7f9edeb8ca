"""Foretells whether a program will need worker processes: it will, unless it needed none when it last ran.

Starting them early hides the seconds in which they import PyTorch. Where every plan comes from the cache, nobody waits for
them, and starting them would make a warm start a fifth longer (MiniLM and BERT, 2 cores).
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from hub.cache.keys import digest_of

FOLDER = "warm"
"""Empty files, one for each program that needed no workers; removed with the rest of the cache."""
MOST = 1000
"""Programs that are remembered; those that planned last."""
_needed_some: set[Path] = set()
"""Marks of which this process has found out that they would be wrong."""


def may_need_workers(root: Path) -> bool:
    """Foretells for the running program; `root` is the cache folder. Raises nothing."""
    try:
        return not _mark(root).exists()
    except OSError:
        return True


def remember(root: Path, *, needed_workers: bool) -> None:
    """Note what planning one graph of this program has shown. Raises nothing."""
    with contextlib.suppress(OSError):
        mark = _mark(root)
        if needed_workers:
            _needed_some.add(mark)
            mark.unlink(missing_ok=True)
        elif mark not in _needed_some:
            mark.parent.mkdir(mode=0o700, exist_ok=True)
            is_new = not mark.exists()
            mark.touch()
            if is_new:
                _trim(mark.parent)


def _trim(folder: Path) -> None:
    """Remove the marks of those programs beyond the most that planned longest ago."""
    marks = sorted(((entry.stat().st_mtime, entry.path) for entry in os.scandir(folder)), reverse=True)
    for _, path in marks[MOST:]:
        Path(path).unlink(missing_ok=True)


def _mark(root: Path) -> Path:
    program = Path(sys.argv[0] if sys.argv else "").absolute()
    return root / FOLDER / digest_of({"program": str(program), "folder": str(Path.cwd())})
