"""Chooses the folder for Inductor's libraries: one in which no other user can place a library that Inductor would load.

Inductor loads any library with the right name, no matter who wrote it, and the name of its folder under the temporary
folder is predictable: another user may have created it first.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hub.plugin import (
    CacheError,
    CompileError,
    compiler_folder,
    distrust,
    distrust_root,
    resolve,
)
from plugin_inductor.torch_private import default_cache_dir

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_SHARED = stat.S_IWGRP | stat.S_IWOTH
_ENTERED = stat.S_IXGRP | stat.S_IXOTH
_sound: set[tuple[str, int]] = set()
"""Folders, with their inode numbers, in which this process has found nothing that others could have written."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place where one compilation keeps its libraries."""

    folder: Path
    has_headers: bool = True
    """False if precompiled headers must not be used: they are always in the default folder, even if the user sets
    another."""
    problem: str = ""
    """Why it is not the default folder, for users; empty if it is, or if the user named another one."""


def trusted_place() -> Place:
    """Return the user's folder, else the default one, else one in the hub's cache.

    Raise CompileError if others could have written to both of these.
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
        folder = compiler_folder(resolve(None, os.environ, Path.cwd()).cache.root, "inductor")
    except CacheError as error:
        hint = f"remove {default}, or name a folder of yours in {VARIABLE}"
        raise CompileError(f"{problem}; {error.message}", backend="inductor", hint=hint) from error
    return Place(folder, has_headers=False, problem=f"{problem}. {folder} is used instead")


def _doubt(folder: Path) -> str:
    """Return why others could have written a folder's contents, or "". Creates a missing folder, closed to others."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        reason = distrust(folder) or distrust_root(folder)
        return reason.partition(";")[0] if reason else _stranger(folder)
    except OSError as error:
        return f"{folder} cannot be used: {error}"


def _stranger(folder: Path) -> str:
    """Return a text that names a file that others could have written, or "".

    Searches once per process, and only if others may enter the folder.
    """
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
