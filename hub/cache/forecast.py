"""Predicts whether a program needs worker processes: it does, unless it needed none when it last ran.

Starting them early hides the seconds in which they import PyTorch. If every plan comes from the cache, they are not needed,
and starting them would make a warm start a fifth longer (MiniLM and BERT, 2 cores).
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from hub.cache.keys import digest_of
from hub.config.settings import working_folder

FOLDER = "warm"
"""Folder of empty files, one for each program that needed no workers; removed with the rest of the cache."""
MOST = 1000
"""Most programs to remember: those that planned last."""
_needed_some: set[Path] = set()
"""Files that this process must not write, because it has found that the program needs workers."""


def may_need_workers(root: Path) -> bool:
    """Return the prediction for the running program; `root` is the cache folder. Raises nothing."""
    try:
        return not _mark(root).exists()
    except OSError:
        return True


def remember(root: Path, *, needed_workers: bool) -> None:
    """Record whether planning one graph of this program needed workers. Raises nothing."""
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
    """Remove the files of the programs beyond the limit that planned longest ago."""
    marks = sorted(((entry.stat().st_mtime, entry.path) for entry in os.scandir(folder)), reverse=True)
    for _, path in marks[MOST:]:
        Path(path).unlink(missing_ok=True)


def _mark(root: Path) -> Path:
    program = Path(sys.argv[0] if sys.argv else "").absolute()
    return root / FOLDER / digest_of({"program": str(program), "folder": str(working_folder())})
