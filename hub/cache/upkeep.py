"""Maintains a cache folder: lists its contents, limits its size, finds broken entries, and clears it."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from hub.cache.artifacts import FOLDER, PARTIAL, SEAL, check_artifact, discard_artifact, folder_bytes, is_in_use, seal_of
from hub.cache.compilers import COMPILERS
from hub.cache.database import DATABASE
from hub.cache.forecast import FOLDER as FORECASTS
from hub.cache.imports import IMPORTS, LEFTOVERS, read_imports
from hub.cache.plans import PLANS, read_plan
from hub.cache.tuning import Tuned, prune_tuned
from hub.plan import TROUBLE, Plan

GRACE_S = 900.0
"""Seconds since its last use during which an entry is not pruned: a planning process may be about to load what it saved."""
STALE_S = 3600.0
"""Seconds after which a half-written entry was left by a killed process: saving takes seconds."""
OTHERS_S = 30 * 86400.0
"""Seconds since its last change after which the file of measurements of another version of the hub is removed."""
ASIDE_S = 7 * 86400.0
"""Seconds after which a damaged file of measurements that was set aside is no longer of interest."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One entry of the cache."""

    kind: Literal["artifact", "plan"]
    backend: str
    """Backend of the executable; empty for a plan."""
    key: str
    path: Path
    nbytes: int
    used: float
    """Time of its last use, or of saving, in seconds since 1970."""
    made: str = ""
    """Time of saving in UTC, as ISO 8601; empty if its seal is damaged."""
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Description for people."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """Result of pruning: what was removed, and what is left."""

    removed: tuple[Kept, ...]
    leftovers: tuple[Path, ...]
    """Half-written files and folders that were removed."""
    aside: tuple[Path, ...]
    """Files of measurements that were removed: set aside, or of another version of the hub."""
    tuned: tuple[Tuned, ...]
    """Tuning results that were removed."""
    nbytes: int
    """Bytes that are left, without tuning results."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An entry of the cache that must not be used."""

    path: Path
    reason: str
    is_removed: bool = False


def list_kept(root: Path) -> tuple[Kept, ...]:
    """Return the entries of a cache, least recently used first. Raises nothing."""
    return tuple(map(_described, _list_kept(root)))


def prune(
    root: Path, limit_bytes: float, *, grace_s: float = GRACE_S, stale_s: float = STALE_S, aside_s: float = ASIDE_S
) -> Pruned:
    """Remove least recently used entries until at most `limit_bytes` are left, and leftovers of killed processes.

    Entries that this process uses stay, and so do those that any process used within `grace_s`, so that more than the limit
    may be left. Measurements do not count, because their number is bounded; files of them that were set aside are removed
    after `aside_s`, and those of other versions of the hub after `OTHERS_S`. Tuning results have a limit of their own.
    Raises nothing.
    """
    leftovers = _remove_leftovers(root, stale_s)
    aside = [path for path in files_aside(root) if _is_older(path, aside_s) and _unlinked(path)]
    for paths in _other_versions(root):
        if all(_is_older(path, OTHERS_S) for path in paths):
            aside += filter(_unlinked, paths)
    kept = _list_kept(root)
    nbytes, now_s = sum(item.nbytes for item in kept), time.time()
    removed: list[Kept] = []
    for item in kept:
        if nbytes <= limit_bytes:
            break
        if not is_in_use(item.path) and now_s - item.used >= grace_s and _remove(item):
            removed.append(item)
            nbytes -= item.nbytes
    return Pruned(tuple(removed), leftovers, tuple(aside), prune_tuned(root, aside_s=aside_s), nbytes)


def files_aside(root: Path) -> tuple[Path, ...]:
    """Return the damaged files of measurements that were set aside, with their logs. Raises nothing."""
    return tuple(sorted(root.glob(f"{DATABASE}.broken-*")))


def _other_versions(root: Path) -> list[list[Path]]:
    """Return the files of measurements of other versions of the hub, each with its logs and its lock."""
    found: dict[str, list[Path]] = {}
    for path in sorted(root.glob("measurements*.sqlite*")):
        if not path.name.startswith(DATABASE):
            found.setdefault(path.name.partition(".sqlite")[0], []).append(path)
    return list(found.values())


def database_bytes(root: Path) -> int:
    """Return the bytes of the file of measurements, with its logs. Raises nothing."""
    found = 0
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
        with contextlib.suppress(OSError):
            found += (root / name).lstat().st_size
    return found


def find_broken(root: Path, *, repair: bool = False) -> tuple[Broken, ...]:
    """Read every byte of every artefact and plan, and of the results of importing plugins.

    Return what must not be used; with `repair`, also remove it.
    """
    artifacts = [
        Broken(folder, reason, repair and discard_artifact(folder))
        for folder in _artifacts(root)
        if (reason := check_artifact(folder, is_wanted=False).problem)
    ]
    plans = [
        Broken(path, reason, repair and _unlinked(path)) for path in _plans(root) if (reason := read_plan(path).problem)
    ]
    path = root / IMPORTS
    imports = [Broken(path, reason, repair and _unlinked(path))] if (reason := read_imports(root).problem) else []
    return (*artifacts, *plans, *imports)


def clear(root: Path) -> int:
    """Remove artefacts, plans, compilers' own caches, results of importing plugins, and leftovers.

    Return the bytes freed. Other files in the folder stay, and so do the measurements in use, which are rows, not files.
    Tuning results stay, too: `hub.cache.tuning.clear_tuned` removes them.
    """
    before = folder_bytes(root)
    for item in _list_kept(root):
        _remove(item)
    _remove_leftovers(root, stale_s=0.0)
    for path in (
        root / IMPORTS,
        root / COMPILERS,
        *files_aside(root),
        *root.glob(f"{FORECASTS}/*"),
        *chain(*_other_versions(root)),
    ):
        _unlinked(path)
    return max(0, before - folder_bytes(root))


def forget_plans(root: Path, backend: str | None = None) -> int:
    """Remove the plans that were decided after a failure of a backend, or of any; return how many. Raises nothing.

    Otherwise they would be replayed, and the backend would not be retried.
    """
    return sum(_unlinked(path) for path in _plans(root) if _is_after_failure(read_plan(path).plan, backend))


def _is_after_failure(plan: Plan | None, backend: str | None) -> bool:
    events = () if plan is None else plan.events
    return any(event.kind in TROUBLE and backend in (None, event.backend) for event in events)


def _artifacts(root: Path) -> Iterator[Path]:
    """Yield everything in the places of artefacts, even if it is no artefact."""
    for backend in _entries(root / FOLDER):
        yield from (path for path in _entries(backend) if not path.name.startswith(PARTIAL))


def _plans(root: Path) -> Iterator[Path]:
    yield from (path for path in _entries(root / PLANS) if not path.name.startswith(PARTIAL))


def _entries(folder: Path) -> list[Path]:
    """Return the contents of a folder, by name; nothing for anything else, or for a link to a folder."""
    with contextlib.suppress(OSError):
        if folder.is_dir() and not folder.is_symlink():
            return sorted(folder.iterdir())
    return []


def _list_kept(root: Path) -> list[Kept]:
    """Return the entries of a cache, least recently used first, without reading them."""
    found = (*map(_kept_artifact, _artifacts(root)), *map(_kept_plan, _plans(root)))
    return sorted(filter(None, found), key=lambda kept: (kept.used, kept.key))


def _kept_artifact(folder: Path) -> Kept | None:
    mark = folder / SEAL if (folder / SEAL).exists() else folder
    with contextlib.suppress(OSError):
        used = mark.lstat().st_mtime
        return Kept("artifact", folder.parent.name, folder.name, folder, folder_bytes(folder), used)
    return None  # another process has removed it


def _kept_plan(path: Path) -> Kept | None:
    with contextlib.suppress(OSError):
        facts = path.lstat()
        return Kept("plan", "", path.stem, path, facts.st_size, facts.st_mtime)
    return None


def _described(item: Kept) -> Kept:
    """Return the entry with the contents of its seal."""
    if item.kind == "artifact":
        seal = seal_of(item.path)
        return replace(item, made=str(seal.get("made", "")), about=seal.get("about", {}))
    found = read_plan(item.path)
    if found.plan is None:
        return item
    about = {"backends": list(found.plan.backends), "inputs": list(found.plan.inputs), "mode": found.plan.mode}
    return replace(item, made=found.made, about=about)


def _remove(item: Kept) -> bool:
    return discard_artifact(item.path, is_damaged=False) if item.kind == "artifact" else _unlinked(item.path)


def _unlinked(path: Path) -> bool:
    """Remove a file, or a folder if there is one in its place; return True if it is gone."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        return True
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def _remove_leftovers(root: Path, stale_s: float) -> tuple[Path, ...]:
    """Remove leftovers from the hub's own folders only: a cache folder may be any folder, with other files."""
    places = (*_entries(root / FOLDER), root / PLANS)
    found = [path for place in places for path in _entries(place) if path.name.startswith(PARTIAL)]
    found += root.glob(f"{LEFTOVERS}*")
    return tuple(path for path in found if _is_older(path, stale_s) and _unlinked(path))


def _is_older(path: Path, seconds: float) -> bool:
    with contextlib.suppress(OSError):
        return time.time() - path.lstat().st_mtime >= seconds
    return False
