"""Folders in the cache for compilers' own caches, for compilers without a safe one."""

from __future__ import annotations

from pathlib import Path

from hub.cache.trust import distrust, distrust_root
from hub.errors import CacheError, words_of

COMPILERS = "compilers"


def compiler_folder(root: Path, backend: str) -> Path:
    """Return `ROOT/compilers/BACKEND`, created if missing. Raises CacheError if other users could have written to it."""
    folder = root / COMPILERS / backend
    try:
        for place in (root, folder.parent, folder):
            place.mkdir(parents=place == root, exist_ok=True, mode=0o700)
        reason = distrust_root(root) or distrust(folder.parent) or distrust(folder)
    except OSError as error:
        raise CacheError(
            f"{folder} cannot be made: {words_of(error)}", hint="set HUB_CACHE_DIR to a folder that you own"
        ) from error
    if reason:
        raise CacheError(f"the cache folder is not used: {reason}")
    return folder
