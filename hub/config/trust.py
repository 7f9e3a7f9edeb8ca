"""Checks whether another user could have written a hub.toml that was found above the working directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def distrust_file(path: Path) -> str:
    """Return why the settings in a file must not be used, or "" if they may. Raises OSError if it is gone.

    It belongs to this user or to the superuser, and so does a link to it; neither all users may write to it, nor a group
    that is not this user's own.
    """
    target = path.stat()
    if any(facts.st_uid not in (0, os.getuid()) for facts in (path.lstat(), target)):
        return "it belongs to another user"
    by_group = target.st_mode & stat.S_IWGRP and target.st_gid != os.getgid()
    return "others may write to it" if by_group or target.st_mode & stat.S_IWOTH else ""
