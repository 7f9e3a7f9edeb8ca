"""Imports plugins in a child process before this one does, once for each version: that can crash, hang or exit.

`python -m hub.trial FILE NAME...` is that child: it writes into FILE which entry point it begins and which it has ended,
and ends itself after one that has printed too much.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.metadata as metadata
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hub.children import run_child
from hub.compilation.family import adopt_orphans, end_descendants
from hub.errors import ContractError
from hub.hookspecs import PROJECT

TRIAL_S = 60.0
"""Seconds that importing the registering modules of all new plugins may take; each should take milliseconds."""
TRIAL_BYTES = 2 << 30
"""Bytes of memory that it may take: PyTorch, which they should not even import, takes a quarter of that."""
TRIAL_OUTPUT_BYTES = 1 << 20
"""Bytes that importing one may print. Each worker imports it again, and one that prints more than its limit is ended."""
MOST_BACKENDS = 1000
"""Backends that one plugin may register: an iterator without end would never be read to it."""
MEMORY = "plugins.json"
"""File in the cache folder with the plugins that were imported safely, and those that were not."""


def import_faults(points: Sequence[metadata.EntryPoint]) -> Mapping[str, str]:
    """Gives, by entry point's name, why this process must not import it. Nothing is said of those that merely raise.

    What was found is remembered by version and file, so that later processes start no child. Raises nothing.
    """
    path = _memory_path()
    known = _remembered(path)
    marks = {point.name: _mark(point) for point in points}
    new = [point for point in points if marks[point.name] not in known]
    if new:
        known |= {marks[name]: fault for name, fault in _tried(new).items()}
        _remember(path, known)
    return {name: fault for name, mark in marks.items() if (fault := known.get(mark, ""))}


def _tried(points: Iterable[metadata.EntryPoint]) -> dict[str, str]:
    """Imports entry points in child processes; gives what each did to its process, "" for nothing."""
    found: dict[str, str] = {}
    left = [point.name for point in points]
    while left:
        with tempfile.TemporaryDirectory(prefix="hub-trial-") as folder:
            record = Path(folder) / "record"
            record.touch()
            # -P: a folder named `hub` in the user's working directory must not be imported in place of this package.
            failure = run_child(
                [sys.executable, "-P", "-m", "hub.trial", str(record), *left],
                TRIAL_S,
                path=sys.path,
                most_bytes=TRIAL_BYTES,
                most_output=TRIAL_OUTPUT_BYTES,
            )
            begun = record.read_text().split()
        ended = [name for name in left if begun.count(name) == 2]
        found |= dict.fromkeys(ended, "")
        culprit = next((name for name in left if begun.count(name) == 1), None)
        if culprit is None:
            break  # the child itself could not run: that says nothing about plugins
        found[culprit] = f"importing it ended its process: {failure or 'exit status 0'}"
        left = [name for name in left if name not in found]
    return found


def _mark(point: metadata.EntryPoint) -> str:
    """Names an entry point with what changes when its code does: its distribution's version, and its package's file."""
    version = f"{point.dist.name} {point.dist.version}" if point.dist else ""
    spec = importlib.machinery.PathFinder.find_spec(point.module.partition(".")[0])
    file = "" if spec is None or spec.origin is None else spec.origin
    facts = Path(file).stat() if file and Path(file).is_file() else None
    stamp = "" if facts is None else f"{facts.st_mtime_ns} {facts.st_size}"
    return f"{point.name} = {point.value}; {version}; {file} {stamp}; {sys.version_info.major}.{sys.version_info.minor}"


def _memory_path() -> Path:
    if given := os.environ.get("HUB_CACHE_DIR", "").strip():
        return Path(given).expanduser() / MEMORY
    import platformdirs  # as in the options: only the cache needs it

    return platformdirs.user_cache_path("compiler-hub") / MEMORY


def _remembered(path: Path) -> dict[str, str]:
    try:
        found: Any = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(key): str(value) for key, value in cast("dict[Any, Any]", found).items()}


def _remember(path: Path, known: Mapping[str, str]) -> None:
    """Writes what is known. Without a folder to write to, the next process tries again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
        with os.fdopen(handle, "w") as file:
            json.dump(known, file, indent=1, sort_keys=True)
        Path(partial).replace(path)


def _main(arguments: Sequence[str]) -> None:
    record, *names = arguments
    points = {point.name: point for point in metadata.entry_points(group=PROJECT)}
    for name in names:
        _write(record, name)
        with contextlib.suppress(BaseException):  # the process that uses the plugin meets it again, and reports it
            module = points[name].load()
            if hasattr(module, "hub_backends"):
                for info in registered(module):
                    importlib.import_module(info.settings.partition(":")[0] or __name__)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):  # a plugin may have replaced it by anything
                stream.flush()
        if os.fstat(1).st_size > TRIAL_OUTPUT_BYTES:
            return  # the parent sees how much it was
        _write(record, name)
        _forget_output()


def _forget_output() -> None:
    """Empties the file that the parent looks into: what a good plugin printed does not count against the next one."""
    with contextlib.suppress(OSError):  # a pipe, where somebody runs this by hand
        os.ftruncate(1, 0)
        os.lseek(1, 0, os.SEEK_SET)


def registered(module: Any) -> tuple[Any, ...]:
    """Gives what a plugin's module registers. Raises ContractError where that has no end, and what the module raises."""
    infos: Iterable[Any] = module.hub_backends()
    found = tuple(itertools.islice(infos, MOST_BACKENDS + 1))
    if len(found) > MOST_BACKENDS:
        raise ContractError(f"hub_backends() gave more than {MOST_BACKENDS} backends")
    return found


def _write(record: str, name: str) -> None:
    with Path(record).open("a") as file:
        file.write(f"{name}\n")


if __name__ == "__main__":
    adopt_orphans()
    try:
        _main(sys.argv[1:])
    finally:
        end_descendants(os.getpid())
