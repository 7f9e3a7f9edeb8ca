"""What importing each plugin did to its process, in one sealed file of the cache folder: `plugins.json`."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hub.cache.artifacts import PARTIAL
from hub.cache.seals import sealed, unsealed
from hub.cache.trust import distrust, distrust_root
from hub.errors import CacheError

IMPORTS = "plugins.json"
LEFTOVERS = f"{IMPORTS}{PARTIAL}"
"""How the names of files begin that a process left half-written."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of importing one version of a plugin."""

    plugin: str
    """Name of its entry point."""
    fault: str
    """Why no process must import it; empty where it did no harm."""
    made: str
    """When, in UTC, as ISO 8601."""
    changes: tuple[str, ...] = ()
    """What of its process importing it changed: "the environment (NAME)"."""


@dataclass(frozen=True, slots=True)
class KeptImports:
    """What was found where imports are kept."""

    found: Mapping[str, Imported] = field(default_factory=dict[str, Imported])
    """By what names a plugin's version and code."""
    problem: str = ""
    """Why what is there must not be used; empty where there is nothing wrong."""
    is_removable: bool = False
    """True where the problem is the file's and not the folder's."""


def read_imports(root: Path) -> KeptImports:
    """Return what is kept under the cache folder `root`, if it is as it was sealed and nobody else's. Raises nothing."""
    path = root / IMPORTS
    try:
        if reason := distrust_root(root):
            return KeptImports(problem=f"the cache folder is not used: {reason}")
        if reason := distrust(path):
            return KeptImports(problem=reason, is_removable=True)
        facts = unsealed(path.read_bytes())
    except FileNotFoundError:
        return KeptImports()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        return KeptImports(problem=f"{path} cannot be read: {error}", is_removable=True)
    if facts is None:
        return KeptImports(problem=f"{path} is damaged", is_removable=True)
    try:
        return KeptImports({mark: _imported(one) for mark, one in facts["imports"].items()})
    except (KeyError, TypeError, AttributeError):
        return KeptImports(problem=f"{path} is of no use: it holds something else", is_removable=True)


def _imported(facts: Mapping[str, Any]) -> Imported:
    known: Mapping[str, Any] = {**facts, "changes": tuple(facts.get("changes", ()))}
    return Imported(**known)


def discard_imports(root: Path) -> bool:
    """Remove what is kept, whatever it is; gives True where it is gone. Raises nothing."""
    with contextlib.suppress(OSError):
        (root / IMPORTS).unlink(missing_ok=True)
    return not os.path.lexists(root / IMPORTS)


def write_imports(root: Path, found: Mapping[str, Imported]) -> None:
    """Write a sealed file: whole, or not at all. Raises CacheError if others may write to the folder, and OSError."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    if reason := distrust_root(root):
        raise CacheError(f"the cache folder is not used: {reason}")
    handle, partial = tempfile.mkstemp(dir=root, prefix=LEFTOVERS)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(sealed({"imports": {mark: asdict(one) for mark, one in found.items()}}))
        Path(partial).replace(root / IMPORTS)
    except OSError:
        with contextlib.suppress(OSError):
            Path(partial).unlink()
        raise


def forget_faults(root: Path, plugin: str | None = None) -> int:
    """Forget why a plugin must not be imported, or all; gives how many there were. Raises CacheError."""
    kept = read_imports(root).found
    left = {mark: one for mark, one in kept.items() if not one.fault or plugin not in (None, one.plugin)}
    if len(left) == len(kept):
        return 0
    try:
        write_imports(root, left)
    except OSError as error:
        raise CacheError(f"{root / IMPORTS} cannot be written: {error}") from error
    return len(kept) - len(left)
