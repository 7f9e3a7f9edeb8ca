"""The cache folder: saved executables and plans, written atomically and checked by digest before use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hub.cache.artifacts import FOLDER, Saved, check_artifact, discard_artifact, save_artifact
from hub.cache.plans import PLANS, read_plan, write_plan
from hub.cache.trust import distrust_root
from hub.cache.upkeep import Pruned, prune
from hub.errors import CacheError, words_of
from hub.plan import Plan


class Store:
    """Saved executables under `artifacts/BACKEND/KEY/`, plans under `plans/KEY.json`."""

    def __init__(self, root: Path) -> None:
        """Open or create the folder. Raises CacheError if other users may write to it."""
        self.root = root
        self._notes: list[str] = []
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            reason = distrust_root(root)
        except OSError as error:
            raise CacheError(
                f"the cache folder {root} cannot be made: {words_of(error)}",
                hint="set HUB_CACHE_DIR to a folder that you own",
            ) from error
        if reason:
            raise CacheError(f"the cache folder is not used: {reason}")

    def take_notes(self) -> tuple[str, ...]:
        """Return what was found broken since the last call: what, why, and what was done about it."""
        notes, self._notes = tuple(self._notes), []
        return notes

    def artifact(self, backend: str, key: str) -> Path:
        """Return the folder of a saved executable, which may not exist yet."""
        return self.root / FOLDER / backend / key

    def has_artifact(self, folder: Path) -> bool:
        """Return whether there is an artefact with every byte as sealed, which no other user could have written.

        An artefact that must not be used is removed, and a note is added.
        """
        found = check_artifact(folder)
        if found.problem:
            self._note(found.problem, is_gone=discard_artifact(folder))
        return found.is_intact

    def save(self, folder: Path, write: Callable[[Path], None], about: Mapping[str, Any] | None = None) -> Saved:
        """Save an executable; see `save_artifact`."""
        return save_artifact(folder, write, about)

    def discard(self, folder: Path) -> None:
        """Remove an artefact that is useless, intact or not."""
        discard_artifact(folder, is_damaged=False)

    def plan(self, key: str) -> Plan | None:
        """Return a cached plan, or None if there is none. A plan that must not be used is removed, and a note is added."""
        path = self._plan_path(key)
        found = read_plan(path)
        with contextlib.suppress(OSError):  # a read-only disk
            if found.plan is not None:
                os.utime(path)
            elif found.problem:
                path.unlink(missing_ok=True)
        if found.problem:
            self._note(found.problem, is_gone=not os.path.lexists(path))
        return found.plan

    def keep_plan(self, key: str, plan: Plan) -> str:
        """Write a plan. Return "", or why that was impossible, as on a full or read-only disk."""
        try:
            write_plan(self._plan_path(key), plan)
        except OSError as error:
            return f"{self.root / PLANS} cannot be written: {words_of(error)}"
        return ""

    def prune(self, limit_bytes: float) -> Pruned:
        """Limit the size of the folder; see `upkeep.prune`."""
        return prune(self.root, limit_bytes)

    def _plan_path(self, key: str) -> Path:
        return self.root / PLANS / f"{key}.json"

    def _note(self, problem: str, *, is_gone: bool) -> None:
        self._notes.append(f"not taken from the cache: {problem}{'; it was removed' if is_gone else ''}")
