"""The cache folder: saved executables and plans, each whole or absent, checked by digest before use."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

from hub.errors import CacheError, PlanError
from hub.plan import Plan

SEAL = "hub-seal.json"
"""File of digests that makes a folder an artefact. A plugin's own files may have any other name."""


class Store:
    """Saved executables under `artifacts/BACKEND/KEY/`, plans under `plans/KEY.json`."""

    def __init__(self, root: Path) -> None:
        """Opens, or makes, the folder. Raises CacheError if others may write to it."""
        self.root = root
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise CacheError(
                f"the cache folder {root} cannot be made: {error}", hint="set cache_dir to a folder of yours"
            ) from error
        _check_owner(root)

    def artifact(self, backend: str, key: str) -> Path:
        """Gives the folder of a saved executable, which may not exist yet."""
        return self.root / "artifacts" / backend / key

    def has_artifact(self, folder: Path) -> bool:
        """True where a sealed artefact is there and every file's digest is as it was when it was sealed."""
        try:
            wanted = json.loads((folder / SEAL).read_text())
            return wanted == _digests(folder)
        except (OSError, ValueError):
            return False

    def drop(self, folder: Path) -> None:
        """Removes an artefact that is of no use."""
        shutil.rmtree(folder, ignore_errors=True)

    def plan(self, key: str) -> Plan | None:
        """Gives a kept plan, or None where there is none or it cannot be read."""
        try:
            return Plan.from_json((self.root / "plans" / f"{key}.json").read_text())
        except (OSError, ValueError, PlanError):
            return None

    def keep_plan(self, key: str, plan: Plan) -> None:
        """Writes a plan. A full or read-only disk is no reason to fail: the plan is then made anew next time."""
        folder = self.root / "plans"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=folder, prefix=".partial-")
            with os.fdopen(handle, "w") as file:
                file.write(plan.to_json())
            Path(partial).replace(folder / f"{key}.json")
        except OSError:
            return


def seal(folder: Path) -> None:
    """Writes the seal of a folder: the digest of each file in it. Raises CacheError if a plugin took the name."""
    if (folder / SEAL).exists():
        raise CacheError(f"a plugin saved a file of its own as {SEAL}", hint="rename it: the name is the hub's")
    digests = _digests(folder)
    (folder / SEAL).write_text(json.dumps(digests, sort_keys=True))


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SEAL)
    found: dict[str, str] = {}
    for path in files:
        with path.open("rb") as file:
            found[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _check_owner(root: Path) -> None:
    facts = root.stat()
    if facts.st_uid != os.getuid():
        raise CacheError(f"the cache folder {root} belongs to another user", hint="set cache_dir to a folder of yours")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheError(f"others may write to the cache folder {root}", hint=f"chmod go-w {root}")
