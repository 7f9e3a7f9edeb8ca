"""Effects of importing each plugin on its process, in one sealed file of the cache folder: `plugins.json`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hub.cache.artifacts import PARTIAL
from hub.cache.seals import unsealed, write_sealed
from hub.cache.trust import distrust, distrust_root
from hub.errors import CacheError, words_of

IMPORTS = "plugins.json"
LEFTOVERS = f"{IMPORTS}{PARTIAL}"
"""Prefix of the names of half-written files."""


@dataclass(frozen=True, slots=True)
class Imported:
    """Result of importing one version of a plugin."""

    plugin: str
    """Name of its entry point."""
    fault: str
    """Reason why no process must import it; empty if the import did no harm."""
    made: str
    """Time of the import in UTC, as ISO 8601."""
    changes: tuple[str, ...] = ()
    """Parts of its process that importing it changed: "the environment (NAME)"."""


@dataclass(frozen=True, slots=True)
class KeptImports:
    """Result of reading the cached imports."""

    found: Mapping[str, Imported] = field(default_factory=dict[str, Imported])
    """Imports by a key for a plugin's version and code."""
    problem: str = ""
    """Reason why the file must not be used; empty if there is no problem."""
    is_removable: bool = False
    """True if the problem is with the file and not with the folder."""


def read_imports(root: Path) -> KeptImports:
    """Return the results under the cache folder `root`, if they are as sealed and could be written by no other user.

    Raises nothing.
    """
    path = root / IMPORTS
    try:
        if reason := distrust_root(root):
            return KeptImports(problem=f"the cache folder is not used: {reason}")
        if reason := distrust(path):
            return KeptImports(problem=reason, is_removable=True)
        facts = unsealed(path.read_bytes())
    except FileNotFoundError:
        return KeptImports()
    except (OSError, RuntimeError) as error:  # RuntimeError: circular links
        return KeptImports(problem=f"{path} cannot be read: {words_of(error)}", is_removable=True)
    if facts is None:
        return KeptImports(problem=f"{path} is damaged", is_removable=True)
    try:
        return KeptImports({mark: _imported(one) for mark, one in facts["imports"].items()})
    except (KeyError, TypeError, AttributeError):
        return KeptImports(problem=f"{path} is unusable: it holds something else", is_removable=True)


def _imported(facts: Mapping[str, Any]) -> Imported:
    known: Mapping[str, Any] = {**facts, "changes": tuple(facts.get("changes", ()))}
    return Imported(**known)


def discard_imports(root: Path) -> bool:
    """Remove the file, or anything else in its place; return True if it is gone. Raises nothing."""
    with contextlib.suppress(OSError):
        (root / IMPORTS).unlink(missing_ok=True)
    return not os.path.lexists(root / IMPORTS)


def write_imports(root: Path, found: Mapping[str, Imported]) -> None:
    """Write a sealed file atomically. Raises CacheError if other users may write to the folder, and OSError."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    if reason := distrust_root(root):
        raise CacheError(f"the cache folder is not used: {reason}")
    write_sealed(root / IMPORTS, {"imports": {mark: asdict(one) for mark, one in found.items()}}, root / LEFTOVERS)


def forget_faults(root: Path, plugin: str | None = None) -> int:
    """Forget why a plugin must not be imported, or all plugins; return how many were forgotten. Raises CacheError."""
    kept = read_imports(root).found
    left = {mark: one for mark, one in kept.items() if not one.fault or plugin not in (None, one.plugin)}
    if len(left) == len(kept):
        return 0
    try:
        write_imports(root, left)
    except OSError as error:
        raise CacheError(f"{root / IMPORTS} cannot be written: {words_of(error)}") from error
    return len(kept) - len(left)
