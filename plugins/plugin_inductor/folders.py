"""Says where Inductor may keep what it compiles: where nobody else could have put a library that it would load.

Inductor loads a library that is there under the right name, whoever wrote it, and its folder's name in the temporary folder
is known beforehand: another user may have made it first.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from hub.plugin import (
    CacheError,
    CompileError,
    compiler_folder,
    distrust,
    distrust_root,
    resolve,
)

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_SHARED = stat.S_IWGRP | stat.S_IWOTH
_ENTERED = stat.S_IXGRP | stat.S_IXOTH
_sound: set[tuple[str, int]] = set()
"""Folders, with their number on the disk, in which this process has found nothing that others could have written."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one compilation keeps its libraries."""

    folder: Path
    has_headers: bool = True
    """False where compiled headers must not be used: they lie in the default folder, whatever the user has set."""
    problem: str = ""
    """Why it is not the default folder, for people; empty where it is, or where the user named another one."""


def trusted_place() -> Place:
    """Return the user's folder, else the default one, else one in the hub's cache.

    Raises CompileError where others could have written to both of these.
    """
    default = Path(default_cache_dir())
    reason = _doubt(default)
    given = os.environ.get(VARIABLE)
    if given is not None and Path(given).absolute() != default:  # Inductor itself sets the variable to the default
        return Place(Path(given).absolute(), has_headers=not reason)
    if not reason:
        return Place(default)
    problem = f"Inductor's own cache is not used: {reason}"
    try:
        folder = compiler_folder(resolve(None, os.environ, Path.cwd()).cache_root, "inductor")
    except CacheError as error:
        hint = f"remove {default}, or name a folder of yours in {VARIABLE}"
        raise CompileError(f"{problem}; {error.message}", backend="inductor", hint=hint) from error
    return Place(folder, has_headers=False, problem=f"{problem}. {folder} is used instead")


def _doubt(folder: Path) -> str:
    """Return why others could have written what a folder holds, or ""; makes it, closed to others, where there is none."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        reason = distrust(folder) or distrust_root(folder)
        return reason.partition(";")[0] if reason else _stranger(folder)
    except OSError as error:
        return f"{folder} cannot be used: {error}"


def _stranger(folder: Path) -> str:
    """Name something in a folder that others could have written; looks once a process, and only where others may enter."""
    facts = folder.stat()
    mark = (str(folder), facts.st_ino)
    if mark in _sound or not facts.st_mode & _ENTERED:
        return ""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if not _is_own(path := Path(place, name)):
                return f"others could have written {path}"
    _sound.add(mark)
    return ""


def _is_own(path: Path) -> bool:
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return True  # another process has moved it into place, or removed it
    return facts.st_uid == os.getuid() and (stat.S_ISLNK(facts.st_mode) or not facts.st_mode & _SHARED)
