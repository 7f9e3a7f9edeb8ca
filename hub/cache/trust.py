"""Checks whether another user could have written a folder or file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_SHARED = stat.S_IWGRP | stat.S_IWOTH


def distrust(path: Path) -> str:
    """Return why a folder or file inside the cache must not be used, or "" if it may. Raises OSError if it is gone.

    Links are rejected, whatever their target: it is outside the folders that were checked.
    """
    facts = path.lstat()
    if stat.S_ISLNK(facts.st_mode):
        return f"{path} is a link, and only the cache folder itself may be one; remove it, or set HUB_CACHE_DIR"
    return _others(path, facts)


def distrust_root(root: Path) -> str:
    """Return why a cache folder must not be used, or "". The folder may be a link. Raises OSError if it is gone.

    The parent folders count too: a user who can write to one of them can replace this cache by another one. A sticky
    folder, such as /tmp, protects its contents, and so does one whose group is this user's own. The owner of a parent
    folder is trusted: the user chose to keep files there.
    """
    place = root.resolve(strict=True)
    if not place.is_dir():
        return f"{place} is not a folder"
    found = (_others(place, place.stat()), *map(_open_to_others, place.parents))
    return next((reason for reason in found if reason), "")


_ANOTHER = "set HUB_CACHE_DIR to a folder that you own"


def _others(path: Path, facts: os.stat_result) -> str:
    if facts.st_uid != os.getuid():
        return f"{path} belongs to another user; {_ANOTHER}"
    if facts.st_mode & _SHARED:
        is_for_all = facts.st_mode & stat.S_ISVTX  # as /tmp is
        return f"others may write to {path}; " + (_ANOTHER if is_for_all else f"chmod go-w {path}")
    return ""


def _open_to_others(folder: Path) -> str:
    facts = folder.stat()
    by_group = facts.st_mode & stat.S_IWGRP and facts.st_gid != os.getgid()
    if facts.st_mode & stat.S_ISVTX or not (facts.st_mode & stat.S_IWOTH or by_group):
        return ""
    return f"others may write to {folder}, above the cache; chmod go-w {folder}, or set HUB_CACHE_DIR to another folder"
