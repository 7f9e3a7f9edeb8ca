"""Temporary files: one folder for each process, which whoever outlives the process removes.

A process that ends by itself removes its folder. One that is killed cannot: then its workers do, who see its end, and if
those are killed as well, the next process that needs such a folder. The owner holds a lock for as long as it lives.
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
"""A folder whose lock nobody holds may be one whose owner has just made it, and is about to take the lock."""
_ENDING_S = 5.0
"""Seconds within which a process that closed its pipes is gone."""
_LOOK_S = 0.01

_lock = freed_in_forks(threading.Lock())
_root: Path | None = None
_held: int | None = None
"""Descriptor of the lock of this process's folder."""


def scratch_root() -> Path:
    """Return this process's folder, made when first asked for, or again where somebody removed it. Raises OSError."""
    global _root, _held
    with _lock:
        if _root is None or not _root.is_dir():
            _let_go()
            _remove_abandoned(Path(tempfile.gettempdir()))
            _root = Path(tempfile.mkdtemp(prefix=_PREFIX))
            _held = os.open(_root / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(_held, fcntl.LOCK_EX)
        return _root


def scratch_folder(purpose: str) -> Path:
    """Return a new folder for some purpose, for whoever asks to remove. Raises OSError."""
    return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=scratch_root()))


@contextlib.contextmanager
def scratch(purpose: str) -> Generator[Path]:
    """Lend a new folder. Raises OSError."""
    folder = scratch_folder(purpose)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_with_owner(root: Path) -> None:
    """Remove another process's folder, if that process is gone; wait a moment for its end. Raises nothing.

    Whoever still writes there is being ended as well, and makes the removal fail until it is.
    """
    end_s = time.monotonic() + _ENDING_S
    while root.is_dir() and time.monotonic() < end_s:
        _remove_if_abandoned(root)
        time.sleep(_LOOK_S)


def _remove_abandoned(place: Path) -> None:
    """Remove what processes left behind that were killed, together with all that could have tidied up after them."""
    for root in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or somebody else removes it
            if time.time() - (root / _LOCK).stat().st_mtime > _YOUNG_S:
                _remove_if_abandoned(root)


def _remove_if_abandoned(root: Path) -> None:
    try:
        descriptor = os.open(root / _LOCK, os.O_RDWR)
    except OSError:  # somebody has begun to remove it
        shutil.rmtree(root, ignore_errors=True)
        return
    with contextlib.suppress(OSError):  # the owner lives
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(root, ignore_errors=True)
    os.close(descriptor)


@in_forks
def _let_go() -> None:
    """Forget the folder; in a fork, it goes on being the parent's."""
    global _root, _held
    if _held is not None:
        os.close(_held)
    _root, _held = None, None


@atexit.register
def _remove_own() -> None:
    """Remove this process's folder. Registered first, and so done last: other modules import this one."""
    root = _root
    _let_go()
    if root is not None:
        shutil.rmtree(root, ignore_errors=True)
