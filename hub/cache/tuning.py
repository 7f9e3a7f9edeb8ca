"""Tuning results of backends: a folder for each backend in the cache, with a folder for each kernel, kept by its plugin.

They may have taken hours, so they have a limit of their own, and `clear` removes them only on request.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from hub.cache.artifacts import folder_bytes

FOLDER = "tuning"
DAMAGED = ".damaged"
"""Part of the name of a kernel's folder that its plugin could not read and set aside."""
MAX_BYTES = 1e9
"""Most bytes of all kernels. A kernel with 1000 schedules has about 5 MB (TVM 0.27), so this suffices for hundreds of
models."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """Tuning results of one kernel, or an unreadable folder that was set aside."""

    backend: str
    path: Path
    nbytes: int
    used: float
    """Time of its last use, in seconds since 1970."""

    @property
    def is_aside(self) -> bool:
        """Return whether its plugin could not read it."""
        return DAMAGED in self.path.name


def tuning_folder(root: Path, backend: str) -> Path:
    """Return where a backend stores its tuning results: `root`/tuning/BACKEND in the cache folder, which may not exist."""
    return root / FOLDER / backend


def note_use(kernel: Path) -> None:
    """Record that a kernel's folder was used: the least recently used ones are removed first. Raises nothing."""
    with contextlib.suppress(OSError):
        os.utime(kernel)


def list_tuned(root: Path) -> tuple[Tuned, ...]:
    """Return the tuning results so far, least recently used first. Raises nothing."""
    found = (tuned for backend in _folders(root / FOLDER) for path in _folders(backend) if (tuned := _tuned(path)))
    return tuple(sorted(found, key=lambda tuned: (tuned.used, tuned.path.name)))


def prune_tuned(root: Path, *, most_bytes: float = MAX_BYTES, aside_s: float) -> tuple[Tuned, ...]:
    """Remove folders that were set aside `aside_s` ago, and the least recently used ones until the rest fits.

    Return what was removed. Raises nothing.
    """
    found, now_s = list_tuned(root), time.time()
    nbytes = sum(tuned.nbytes for tuned in found)
    removed: list[Tuned] = []
    for tuned in sorted(found, key=lambda tuned: not tuned.is_aside):
        is_over = nbytes > most_bytes
        if (is_over or (tuned.is_aside and now_s - tuned.used >= aside_s)) and _removed(tuned.path):
            removed.append(tuned)
            nbytes -= tuned.nbytes
    return tuple(removed)


def clear_tuned(root: Path) -> tuple[Tuned, ...]:
    """Remove all tuning results, and return what was removed. Raises nothing."""
    return tuple(tuned for tuned in list_tuned(root) if _removed(tuned.path))


def _tuned(path: Path) -> Tuned | None:
    with contextlib.suppress(OSError):
        return Tuned(path.parent.name, path, folder_bytes(path), path.lstat().st_mtime)
    return None  # another process has removed it


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, without links."""
    with contextlib.suppress(OSError):
        if not folder.is_symlink():
            return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return []


def _removed(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()
