"""Temporary files: one folder for each process, which is removed even if the process is killed.

A process that ends by itself removes its folder. If it is killed, its workers remove it, which notice its end; if those are
killed as well, the next process that needs such a folder does. The owner holds a lock as long as it lives. The folder of a
worker lies in that of the process that started it, so what a killed worker leaves is removed with it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path

from hub.process.forks import freed_in_forks, in_forks

_PREFIX = "hub-"
_LOCK = "owner"
_YOUNG_S = 60.0
"""Seconds for which an unlocked folder is not removed, since its owner may have just made it and be about to lock it."""
_ENDING_S = 5.0
"""Seconds within which a process that closed its pipes is gone."""
_LOOK_S = 0.01

_lock = freed_in_forks(threading.Lock())
_parent: Path | None = None
"""Folder of the process that started this one as its worker."""
_root: Path | None = None
_held: int | None = None
"""Descriptor of the lock on this process's folder."""


def scratch_root() -> Path:
    """Return this process's folder, created on first use, or again if it was removed. Raises OSError."""
    global _root, _held
    with _lock:
        if _root is None or not _root.is_dir():
            _let_go()
            place = _parent if _parent is not None and _parent.is_dir() else Path(tempfile.gettempdir())
            if place != _parent:
                _remove_abandoned(place)
            _root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
            _held = os.open(_root / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(_held, fcntl.LOCK_EX)
        return _root


def nest_in(root: Path) -> None:
    """Make this process's folder, and those of its forks, in the one of the process that started it."""
    global _parent
    _parent = root


def scratch_folder(purpose: str) -> Path:
    """Return a new folder for some purpose, which the caller has to remove. Raises OSError.

    What killed workers have left is removed at this occasion.
    """
    root = scratch_root()
    _remove_abandoned(root)
    return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=root))


@contextlib.contextmanager
def scratch(purpose: str) -> Generator[Path]:
    """Provide a new folder for the duration of the block. Raises OSError."""
    folder = scratch_folder(purpose)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_with_owner(root: Path) -> None:
    """Remove another process's folder, if that process is gone; wait a moment for its end. Raises nothing.

    Processes that still write there are being ended as well, and make the removal fail until they are.
    """
    end_s = time.monotonic() + _ENDING_S
    while root.is_dir() and time.monotonic() < end_s:
        _remove_if_abandoned(root)
        time.sleep(_LOOK_S)


def _remove_abandoned(place: Path) -> None:
    """Remove folders of killed processes, if all processes that could have cleaned up were killed as well."""
    for root in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or another process removes it
            if time.time() - (root / _LOCK).stat().st_mtime > _YOUNG_S:
                _remove_if_abandoned(root)


def _remove_if_abandoned(root: Path) -> None:
    try:
        descriptor = os.open(root / _LOCK, os.O_RDWR)
    except OSError:  # another process has begun to remove it
        shutil.rmtree(root, ignore_errors=True)
        return
    with contextlib.suppress(OSError):  # its owner is alive
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(root, ignore_errors=True)
    os.close(descriptor)


@in_forks
def _let_go() -> None:
    """Forget the folder: in a fork, it still belongs to the parent."""
    global _root, _held
    if _held is not None:
        os.close(_held)
    _root, _held = None, None


@atexit.register
def _remove_own() -> None:
    """Remove this process's folder. Registered first, and therefore run last: other modules import this one."""
    root = _root
    _let_go()
    if root is not None:
        shutil.rmtree(root, ignore_errors=True)
