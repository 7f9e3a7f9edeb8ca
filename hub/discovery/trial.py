"""Imports plugins in a child process before this process does, once per version: an import can crash, hang or exit.

`python -m hub.discovery.trial FILE NAME...` is that child. It records in FILE each entry point that it begins and each that
it has finished, and ends itself after one that has printed too much.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import importlib.machinery
import importlib.metadata as metadata
import itertools
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hub.cache.imports import Imported, discard_imports, read_imports, write_imports
from hub.config.settings import SLOW_IMPORTS, from_environment, from_file, working_folder
from hub.discovery.plugins import Plugin
from hub.errors import CacheError, ContractError, OptionError
from hub.plugin.hooks import PROJECT
from hub.process.children import Failed, Outcome, run_child, tell_children
from hub.process.family import adopt_orphans, end_descendants
from hub.process.scratch import scratch
from hub.process.state import claim_process, kept_state

TRIAL_S = 60.0
"""Seconds that importing the registering module of a new plugin may take; it should take milliseconds."""
TRIAL_BYTES = 2 << 30
"""Bytes of memory that an import may use: PyTorch, which it should not even import, uses a quarter of that."""
TRIAL_OUTPUT_BYTES = 1 << 20
"""Bytes that an import may print. Each worker imports the plugin again, and a worker that exceeds its limit is ended."""
MAX_BACKENDS = 1000
"""Backends that one plugin may register: an endless iterator would never be exhausted."""

_slow: dict[str, str] = {}
"""Plugins that took too long in this process, or in the one that started it. The machine may have been busy."""


@dataclass(frozen=True, slots=True)
class Trials:
    """Results of importing plugins."""

    faults: Mapping[str, str]
    """Reasons by entry point's name why this process must not import it. Plugins that merely raise are not listed."""
    notes: tuple[str, ...] = ()
    """Problems with the cache, and what was done about them."""
    changes: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Changes by entry point's name that importing it makes to its process."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """Effects of imports on child processes, by entry point's name; "" for none."""

    lasting: Mapping[str, str]
    passing: Mapping[str, str]
    """Failures that may not happen the next time."""
    changes: Mapping[str, tuple[str, ...]]
    """Changes that an import made to its process, if it finished."""


@dataclass(frozen=True, slots=True)
class _Record:
    """A child's record from before it ended."""

    begun: tuple[str, ...]
    ended: Mapping[str, tuple[str, ...]]
    """Changes by entry point's name that importing it made to the child."""
    failure: Failed | None
    """The child's failure; None if it did not fail."""


def try_imports(points: Sequence[metadata.EntryPoint]) -> Trials:
    """Return which plugins this process must not import.

    Results are cached by version and file, so that later processes start no child. A plugin that took too long is
    remembered only by this process and the processes that it starts. Raises nothing.
    """
    root = _cache_root()
    kept = read_imports(root)
    notes = [_not_used(kept.problem, is_gone=kept.is_removable and discard_imports(root))] if kept.problem else []
    marks = {point.name: _mark(point) for point in points}
    _slow.update(_inherited())
    tried = _tried([point for point in points if marks[point.name] not in {*kept.found, *_slow}])
    if tried.passing:
        _slow.update({marks[name]: fault for name, fault in tried.passing.items()})
        tell_children(SLOW_IMPORTS, json.dumps(_slow))
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    news = {marks[name]: Imported(name, fault, now, tried.changes.get(name, ())) for name, fault in tried.lasting.items()}
    is_kept = not news or _remember(root, news)
    known = {**kept.found, **news}
    found = {name: known[mark] for name, mark in marks.items() if mark in known}
    faults = {name: f"{one.fault}; {_again(name, is_kept=is_kept)}" for name, one in found.items() if one.fault}
    slow = {name: f"{_slow[mark]}; {_again(name, is_kept=False)}" for name, mark in marks.items() if mark in _slow}
    return Trials({**faults, **slow}, tuple(notes), {name: one.changes for name, one in found.items() if one.changes})


def _inherited() -> dict[str, str]:
    try:
        return {str(mark): str(fault) for mark, fault in json.loads(os.environ.get(SLOW_IMPORTS) or "{}").items()}
    except (ValueError, AttributeError):
        return {}


def _remember(root: Path, news: Mapping[str, Imported]) -> bool:
    """Add new results to the current cache: trying took time, and other processes may have added or removed entries."""
    with contextlib.suppress(OSError, CacheError):
        write_imports(root, {**read_imports(root).found, **news})
        return True
    return False


def _again(name: str, *, is_kept: bool) -> str:
    return f"`hub cache forget {name}` lets it be tried again" if is_kept else "the next process tries it again"


def _not_used(problem: str, *, is_gone: bool) -> str:
    return f"not taken from the cache: {problem}{'; it was removed' if is_gone else ''}"


def _tried(points: Iterable[metadata.EntryPoint]) -> _Tried:
    """Import entry points in child processes.

    One child imports many, so they share its limits. A plugin that exceeds them is first retried in a fresh child before it
    is blamed.
    """
    lasting: dict[str, str] = {}
    passing: dict[str, str] = {}
    changes: dict[str, tuple[str, ...]] = {}
    left: list[str] = [point.name for point in points]
    while left:
        record = _imported_elsewhere(left)
        lasting |= dict.fromkeys(record.ended, "")
        changes |= record.ended
        left = [name for name in left if name not in record.ended]
        culprit = next((name for name in left if name in record.begun), None)
        if culprit is None:
            break  # the child itself could not run, which says nothing about plugins
        failure = record.failure
        if record.ended and failure is not None and failure.is_beyond_limit:
            continue
        found = passing if failure is not None and failure.outcome is Outcome.OUT_OF_TIME else lasting
        found[culprit] = f"importing it ended its process: {failure or 'exit status 0'}"
        left.remove(culprit)
    return _Tried(lasting, passing, changes)


def _imported_elsewhere(names: Sequence[str]) -> _Record:
    """Import entry points in a child; return its record, and how it failed."""
    with scratch("trial") as folder:
        record = folder / "record"
        record.touch()
        # -P: a folder named `hub` in the user's working directory must not be imported instead of this package.
        failure = run_child(
            [sys.executable, "-P", "-m", "hub.discovery.trial", str(record), *names],
            TRIAL_S,
            path=sys.path,
            most_bytes=TRIAL_BYTES,
            most_output=TRIAL_OUTPUT_BYTES,
        )
        lines = [json.loads(line) for line in record.read_text().splitlines()]
    begun = tuple(line["begun"] for line in lines if "begun" in line)
    return _Record(begun, {line["ended"]: tuple(line["changes"]) for line in lines if "ended" in line}, failure)


def _mark(point: metadata.EntryPoint) -> str:
    """Return a key that changes with an entry point's code: its distribution's version, and its module's files."""
    version = f"{point.dist.name} {point.dist.version}" if point.dist else ""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{point.name} = {point.value}; {version}; {_stamp(module_of(point))}; {python}"


def module_of(point: metadata.EntryPoint) -> str:
    """Return the module that an entry point names; "" if its value names none, for which `point.module` raises."""
    found = point.pattern.match(point.value)
    return found["module"] if found else ""


def _stamp(module: str) -> str:
    """Return the location, age and size of the files in a module's folder, without importing it."""
    top, *inner = module.split(".")
    spec = importlib.machinery.PathFinder.find_spec(top) if top else None
    if spec is None:
        return ""
    folders = [Path(place, *inner[:-1]) for place in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in folder.glob("*.py")] or [Path(spec.origin or "")]
    facts = [file.stat() for file in files if file.is_file()]
    latest = max((fact.st_mtime_ns for fact in facts), default=0)
    return f"{folders[0] if folders else spec.origin} {len(facts)} {latest} {sum(fact.st_size for fact in facts)}"


def _cache_root() -> Path:
    """Return the cache folder as far as it is known before any model is compiled, which ignores the options of a call."""
    with contextlib.suppress(OSError, OptionError):
        given = os.environ.get("HUB_CACHE_DIR", "")
        found = from_environment({"HUB_CACHE_DIR": given}, working_folder()) or from_file(working_folder(), None)
        if "cache.dir" in found and isinstance(path := found["cache.dir"].value, Path):
            return path
    import platformdirs  # as in the options: only the cache needs it

    return platformdirs.user_cache_path("compiler-hub")


def _main(arguments: Sequence[str]) -> None:
    record, *names = arguments
    points = {point.name: point for point in metadata.entry_points(group=PROJECT)}
    for name in names:
        _write(record, begun=name)
        # If it raises, the process that uses the plugin gets the same exception, and reports it.
        with kept_state() as changes, contextlib.suppress(BaseException):
            for info in registered(Plugin.of(name, points[name].load())):
                importlib.import_module(info.settings.partition(":")[0] or __name__)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):  # a plugin may have replaced the stream by anything
                stream.flush()
        if os.fstat(1).st_size > TRIAL_OUTPUT_BYTES:
            return  # the parent sees how much was printed
        _write(record, ended=name, changes=changes)
        _forget_output()


def _forget_output() -> None:
    """Empty the file that the parent inspects, so that a good plugin's output does not count against the next one."""
    with contextlib.suppress(OSError):  # a pipe, if someone runs this by hand
        os.ftruncate(1, 0)
        os.lseek(1, 0, os.SEEK_SET)


def registered(plugin: Plugin) -> tuple[Any, ...]:
    """Return what a plugin registers. Raises ContractError if that is endless, and what the plugin raises."""
    infos = itertools.chain.from_iterable(plugin.call("hub_backends"))
    found = tuple(itertools.islice(infos, MAX_BACKENDS + 1))
    if len(found) > MAX_BACKENDS:
        raise ContractError(f"hub_backends() returned more than {MAX_BACKENDS} backends")
    return found


def _write(record: str, **facts: Any) -> None:
    with Path(record).open("a") as file:
        file.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    claim_process()
    adopt_orphans()
    try:
        _main(sys.argv[1:])
    finally:
        end_descendants(os.getpid())
